"""Inputs inside guard bands: an op that writes past its buffer changes one, and is caught."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from kvlab.errors import BackendError
from kvlab.ops import Backend, OpSpec, choose
from kvlab.ops.specs import Inputs, Sizes
from tests.ops.sizes import SIZES

_BAND = 512  # bytes before and behind each tensor: a row or more of most specs


def twin_can_run(device: str = "cpu") -> bool:
    """Whether the twins take tensors on ``device`` here."""
    try:
        return choose("triton", torch.empty(0, device=device)) == "triton"
    except BackendError:
        return False


BACKENDS: tuple[Backend, ...] = ("torch", "triton") if twin_can_run() else ("torch",)
needs_interpreter = pytest.mark.skipif(
    not twin_can_run(), reason="the twins take CPU tensors under Triton's interpreter only"
)


def cases(spec: OpSpec) -> list[Any]:
    """Each sizes of the spec, with a name."""
    return [
        pytest.param(spec, sizes, id=f"{spec.name}-" + "-".join(str(v) for v in sizes.values()))
        for sizes in SIZES[spec.name]
    ]


@contextmanager
def guarded(inputs: Inputs) -> Iterator[Inputs]:
    """The inputs with each tensor between two bands of garbage that must be whole afterwards."""
    bands: list[tuple[str, Tensor, Tensor]] = []

    def inside(name: str, tensor: Tensor) -> Tensor:
        span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        size = span * tensor.element_size() if tensor.numel() else 0
        around = torch.randint(0, 256, (size + 2 * _BAND + 16,), dtype=torch.uint8)
        around = around.to(tensor.device)
        for band in (around[:_BAND], around[_BAND + size :]):
            bands.append((name, band, band.clone()))
        room = around[_BAND : _BAND + -(-size // 16) * 16].view(tensor.dtype)
        placed = torch.as_strided(room, tensor.shape, tensor.stride(), room.storage_offset())
        placed.copy_(tensor)
        return placed

    moved: Inputs = {}
    for name, given in inputs.items():
        moved[name] = inside(name, given) if isinstance(given, Tensor) else given
    yield moved
    for name, band, before in bands:
        assert torch.equal(band, before), f"wrote outside {name}"


def run_guarded(spec: OpSpec, sizes: Sizes, seed: int, device: str, twin: bool) -> list[Tensor]:
    """Copies of what the spec's twin or reference puts out."""
    with guarded(spec.make_inputs(sizes, seed, device)) as inputs:
        outputs = spec.run(inputs, "triton" if twin else "torch")
        if device != "cpu":
            torch.cuda.synchronize()
        return [output.clone() for output in outputs]


def assert_same(spec: OpSpec, found: list[Tensor], wanted: list[Tensor]) -> None:
    """Equal to the bit where the spec's tolerance is 0, else within it."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if spec.tolerance == 0:
            assert torch.equal(one.contiguous().view(torch.uint8), other.view(torch.uint8))
        else:
            near = max(spec.tolerance, torch.finfo(one.dtype).eps)
            torch.testing.assert_close(one, other, rtol=near, atol=near, equal_nan=False)
