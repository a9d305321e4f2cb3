"""What binds a twin to its reference: one spec an op, which tests and the benchmark walk through.

Worked example, of the spec of ``gather_rows``:

    inputs = spec.make_inputs(spec.sizes[0], seed=1, device="cpu")
    outputs = spec.reference(inputs)     # what the op returns, then what it wrote to
    spec.bytes_moved(inputs)             # the least that any implementation must move
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.attn import Partial
from kvlab.ops.backend import Backend
from kvlab.ops.flag import CheckFlag

Sizes = Mapping[str, int | str]
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op: what it takes, what is compared, what it must move.

    Args:
        name: as in reports. Two specs may share an op (``localize_run`` checked and unchecked).
        op: the entry, ``op(**inputs, backend=...)``.
        axes: each size in words, with its unit.
        sizes: what the tests go through, odd and empty ones among them.
        make_inputs: ``(sizes, seed, device)`` -> the arguments of ``op``. Equal arguments give
            equal inputs; outputs among them are filled with garbage that the op must replace.
        changes: names of the inputs that the op writes to.
        tolerance: 0 where the twin gives the bits of the reference; else the relative and the
            absolute difference that float32 may show (narrower types: one step of theirs).
        bytes_moved: bytes that any implementation must read or write for these inputs.
    """

    name: str
    op: Callable[..., Any]
    axes: Mapping[str, str]
    sizes: tuple[Sizes, ...]
    make_inputs: Callable[[Sizes, int, torch.device | str], Inputs]
    changes: tuple[str, ...]
    tolerance: float
    bytes_moved: Callable[[Inputs], int]

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """What the torch reference returns, then what it wrote to."""
        return self.run(inputs, "torch")

    def twin(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """What the Triton twin returns, then what it wrote to. Errors: BackendError without it."""
        return self.run(inputs, "triton")

    def run(self, inputs: Inputs, backend: Backend | None) -> tuple[Tensor, ...]:
        """The outputs of the op by ``backend``: what it returns, then what it wrote to."""
        found = self.op(**inputs, backend=backend)
        returned = [found] if isinstance(found, Tensor) else []
        if isinstance(found, Partial):
            returned = [found.out, found.lse]
        return (*returned, *(_tensor(inputs[name]) for name in self.changes))


def nbytes(*tensors: Tensor) -> int:
    """Bytes of the elements of these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _tensor(given: Tensor | CheckFlag) -> Tensor:
    return given.value if isinstance(given, CheckFlag) else given
