"""What binds a twin to its reference: one spec an op, which tests and the benchmark walk through.

A new op gets a spec here, and sizes in ``tests/ops/sizes.py``, where the names of its sizes are
read. Inputs are made on the host from a seed and moved, so that a device gets the numbers that the
CPU gets: shuffled pages, holes, garbage where an op must write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvlab.attn import Partial
from kvlab.index import Shard
from kvlab.ops.backend import Backend
from kvlab.ops.localize import localize_fixed_shape, localize_run, remap_topk
from kvlab.ops.merge import merge_stacked
from kvlab.ops.rows import gather_rows, scatter_rows
from kvlab.ops.write import set_mla_kv_buffer

Sizes = Mapping[str, int | str]
Inputs = dict[str, Any]
Maker = Callable[[Mapping[str, Any], torch.Generator], Inputs]
_PAGES = 2**40  # page ids go far beyond 32 bits: an id is a number, and need not fit memory


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op: what it takes, what is compared, what it must move.

    Args:
        op: the entry, ``op(**inputs, backend=...)``; its name is the spec's.
        make: the arguments of ``op``, of sizes and chance; outputs among them hold garbage.
        bytes_moved: bytes that any implementation must read or write for these inputs.
        changes: names of the inputs that the op writes to.
        tolerance: of float32 (narrower types: one step of theirs); 0 asks for equal bits.
    """

    op: Callable[..., Any]
    make: Maker
    bytes_moved: Callable[[Inputs], int]
    changes: tuple[str, ...] = ()
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        """The op's, as in reports."""
        return self.op.__name__

    def make_inputs(self, sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
        """The arguments of ``op`` on ``device``. Equal arguments give equal inputs."""
        made = self.make(sizes, torch.Generator().manual_seed(seed))
        return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in made.items()}

    def run(self, inputs: Inputs, backend: Backend | None) -> tuple[Tensor, ...]:
        """The outputs of the op by ``backend``: what it returns, then what it wrote to."""
        found = self.op(**inputs, backend=backend)
        returned = [found] if isinstance(found, Tensor) else []
        if isinstance(found, Partial):
            returned = [found.out, found.lse]
        return (*returned, *(inputs[name] for name in self.changes))


def _run_inputs(sizes: Mapping[str, Any], chance: torch.Generator) -> Inputs:
    """A run over shuffled pages: slot and position agree about the owner."""
    shard, start = _shard(sizes), sizes["start"]
    width = shard.turn * 4
    position = start + torch.arange(sizes["n"])
    page = torch.randint(1, _PAGES, (sizes["n"] // width + 2,), generator=chance)
    ids = page[position // width - start // width] * width + position % width
    return {"ids": ids, "shard": shard, "start": start}


def _run_bytes(inputs: Inputs) -> int:
    return 16 * len(inputs["shard"].elements(len(inputs["ids"]), inputs["start"]))


def _fixed_inputs(sizes: Mapping[str, Any], chance: torch.Generator) -> Inputs:
    ids = _ids_with_holes((sizes["n"],), chance)
    return {"ids": ids, "shard": _shard(sizes), "hole": sizes["hole"]}


def _topk_inputs(sizes: Mapping[str, Any], chance: torch.Generator) -> Inputs:
    return {
        "topk": _ids_with_holes((sizes["lists"], sizes["k"]), chance),
        "shard": _shard(sizes),
    }


def _rows_inputs(sizes: Mapping[str, Any], chance: torch.Generator, flat: str) -> Inputs:
    """Whole pages in random order, then single rows; ``skip`` flat rows left out at either end.
    ``flat``: the name of the copy, "out" or "source"."""
    layers, page, m = sizes["layers"], sizes["page_size"], sizes["rows"]
    pages = -(-m // page) + 2
    order = torch.randperm(pages, generator=chance)
    rows = (order[:, None] * page + torch.arange(page)).flatten()[:m]
    if sizes["shuffled"]:
        rows = rows[torch.randperm(m, generator=chance)]
    kind, e, begin = getattr(torch, sizes["dtype"]), sizes["elements"], sizes["skip"]
    end = layers * m - begin
    blocks = (layers, -(-m // sizes["block_rows"]))
    return {
        "buffer": _garbage((layers, pages * page, e), kind, chance),
        "rows": rows,
        flat: _garbage((end - begin, e), kind, chance),
        "begin": begin,
        "end": end,
        "sums": torch.randint(-(2**62), 2**62, blocks, generator=chance),
        "block_rows": sizes["block_rows"],
        "page_size": page,
    }


def _write_inputs(sizes: Mapping[str, Any], chance: torch.Generator) -> Inputs:
    """Distinct slots, padding, ids out of bounds, parts that are slices of one projection."""
    shard, n, d1 = _shard(sizes), sizes["n"], sizes["d1"]
    width = shard.turn * 2
    slots = (-(-n // width) + 1) * width
    ids = width + torch.randperm(slots - width, generator=chance)[:n]
    ids[3::5] = torch.randint(-1, width, (len(ids[3::5]),), generator=chance)
    wrong = torch.randperm(n, generator=chance)[: sizes["bad"]]
    ids[wrong] = torch.where(wrong % 2 == 0, slots + wrong, -2 - wrong)
    kind, row = getattr(torch, sizes["dtype"]), d1 + sizes["d2"]
    projection = _garbage((n, row + 3), kind, chance)
    return {
        "layer": _garbage((slots // shard.dcp_size, row), kind, chance),
        "ids": ids,
        "k_nope": projection[:, :d1],
        "k_rope": projection[:, d1 + 3 :],
        "shard": shard,
        "first_slot": width,
        "slot_end": slots,
    }


def _write_bytes(inputs: Inputs) -> int:
    rows = nbytes(inputs["k_nope"], inputs["k_rope"]) // int(inputs["shard"].dcp_size)
    return nbytes(inputs["ids"]) + 2 * rows


def _merge_inputs(sizes: Mapping[str, Any], chance: torch.Generator) -> Inputs:
    """A fifth of the shards is empty, and their outputs are whatever the memory held."""
    shape = (sizes["dcp_size"], sizes["queries"], sizes["heads"])
    out = torch.randn(*shape, sizes["d"], generator=chance)
    lse = torch.randn(shape, generator=chance) * 8
    empty = torch.rand(shape, generator=chance) < 0.2
    out = torch.where(empty[..., None], torch.nan, out).to(getattr(torch, sizes["dtype"]))
    return {"out": out, "lse": torch.where(empty, -torch.inf, lse)}


def _merge_bytes(inputs: Inputs) -> int:
    out, lse = inputs["out"], inputs["lse"]
    return nbytes(out, lse, out[0]) + 4 * int(lse[0].numel())


def nbytes(*tensors: Tensor) -> int:
    """Bytes of the elements of these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _shard(sizes: Mapping[str, Any]) -> Shard:
    return Shard(sizes["dcp_size"], sizes["dcp_rank"], sizes.get("interleave", 1))


def _garbage(shape: tuple[int, ...], kind: torch.dtype, chance: torch.Generator) -> Tensor:
    """Random bytes seen as ``kind``: of a float type, NaN and infinity among them."""
    size = torch.empty(0, dtype=kind).element_size()
    made = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=chance)
    return made.to(torch.uint8).view(kind)


def _ids_with_holes(shape: tuple[int, ...], chance: torch.Generator) -> Tensor:
    ids = torch.randint(0, _PAGES, shape, generator=chance)
    return torch.where(torch.rand(shape, generator=chance) < 0.125, -1, ids)


SPECS: tuple[OpSpec, ...] = (
    OpSpec(localize_run, _run_inputs, _run_bytes),
    OpSpec(localize_fixed_shape, _fixed_inputs, lambda inputs: 2 * nbytes(inputs["ids"])),
    OpSpec(remap_topk, _topk_inputs, lambda inputs: 2 * nbytes(inputs["topk"])),
    OpSpec(
        gather_rows,
        partial(_rows_inputs, flat="out"),
        lambda inputs: 2 * nbytes(inputs["out"]),
        ("out", "sums"),
    ),
    OpSpec(
        scatter_rows,
        partial(_rows_inputs, flat="source"),
        lambda inputs: 2 * nbytes(inputs["source"]),
        ("buffer", "sums"),
    ),
    OpSpec(set_mla_kv_buffer, _write_inputs, _write_bytes, ("layer",)),
    OpSpec(merge_stacked, _merge_inputs, _merge_bytes, tolerance=1e-5),
)
