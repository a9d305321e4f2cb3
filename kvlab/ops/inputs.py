"""Inputs of the specs: shuffled pages, garbage where an op must write, bad ids where it must look.

Made on the host from a seed and moved, so that a device gets the numbers that the CPU gets.

Worked example, c=2, page of 2 rows (W = 4), start 3: the run's positions 3 4 5 lie in pages p and q
drawn at random, so the slots are ``4p + 3, 4q, 4q + 1``; slot and position agree about the owner.
"""

import torch
from torch import Tensor

from kvlab.index import Shard
from kvlab.ops.flag import CheckFlag
from kvlab.ops.spec import Inputs, Sizes, nbytes

_PAGES = 2**40  # page ids go far beyond 32 bits: an id is a number, and need not fit memory


def number(sizes: Sizes, name: str) -> int:
    """A size as an int. Errors: KeyError for one that the spec has not."""
    return int(sizes[name])


def shard_of(sizes: Sizes) -> Shard:
    """The rank that asks."""
    names = ("dcp_size", "dcp_rank", "interleave")
    return Shard(*(number(sizes, name) for name in names if name in sizes))


def run_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """Arguments of ``localize_run``: a run over shuffled pages that agrees with its positions."""
    c, interleave, start = (number(sizes, k) for k in ("dcp_size", "interleave", "start"))
    width = c * interleave * 4
    generator = torch.Generator().manual_seed(seed)
    position = start + torch.arange(number(sizes, "n"))
    page = torch.randint(1, _PAGES, (len(position) // width + 2,), generator=generator)
    ids = page[position // width - start // width] * width + position % width
    return {
        "ids": ids.to(device),
        "shard": shard_of(sizes),
        "start": start,
    }


def checked_run_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """As ``run_inputs`` with a flag, and ``bad`` ids that are holes, too high, or out of turn."""
    inputs = run_inputs(sizes, seed, "cpu")
    ids: Tensor = inputs["ids"]
    width = number(sizes, "dcp_size") * number(sizes, "interleave") * 4
    end = _PAGES * width
    generator = torch.Generator().manual_seed(seed + 1)
    for which in range(number(sizes, "bad")):
        at = int(torch.randint(0, len(ids), (1,), generator=generator))
        ids[at] = (-1, end + at, int(ids[at]) + number(sizes, "interleave"))[which % 3]
    moved = {"ids": ids.to(device), "bounds": (width, end), "flag": CheckFlag(device)}
    return {**inputs, **moved}


def run_bytes(inputs: Inputs) -> int:
    """All ids with a flag, this rank's without; and this rank's rows."""
    ids: Tensor = inputs["ids"]
    mine = len(inputs["shard"].elements(len(ids), inputs["start"]))
    return 8 * ((len(ids) if "flag" in inputs else mine) + mine)


def fixed_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """Arguments of ``localize_fixed_shape``: ids in any order, an eighth of them holes."""
    ids = _ids_with_holes((number(sizes, "n"),), seed)
    return {
        "ids": ids.to(device),
        "shard": shard_of(sizes),
        "hole": number(sizes, "hole"),
    }


def topk_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """Arguments of ``remap_topk``: lists of ids in any order, an eighth of them holes."""
    ids = _ids_with_holes((number(sizes, "lists"), number(sizes, "k")), seed)
    return {"topk": ids.to(device), "shard": shard_of(sizes)}


def rows_inputs(sizes: Sizes, seed: int, device: torch.device | str, flat: str) -> Inputs:
    """Arguments of ``gather_rows`` (``flat`` "out") and ``scatter_rows`` (``flat`` "source").

    Whole pages in random order, then single rows; ``skip`` flat rows are left out at either end.
    """
    generator = torch.Generator().manual_seed(seed)
    layers, page, m = (number(sizes, k) for k in ("layers", "page_size", "rows"))
    pages = -(-m // page) + 2
    order = torch.randperm(pages, generator=generator)
    rows = (order[:, None] * page + torch.arange(page)).flatten()[:m]
    if number(sizes, "shuffled"):
        rows = rows[torch.randperm(m, generator=generator)]
    kind, e = getattr(torch, str(sizes["dtype"])), number(sizes, "elements")
    begin = number(sizes, "skip")
    end = layers * m - begin
    block_rows = number(sizes, "block_rows")
    blocks = (layers, -(-m // block_rows))
    return {
        "buffer": garbage((layers, pages * page, e), kind, generator).to(device),
        "rows": rows.to(device),
        flat: garbage((end - begin, e), kind, generator).to(device),
        "begin": begin,
        "end": end,
        "sums": torch.randint(-(2**62), 2**62, blocks, generator=generator).to(device),
        "block_rows": block_rows,
        "page_size": page,
    }


def rows_bytes(inputs: Inputs) -> int:
    """Each row of the range read once and written once."""
    return 2 * nbytes(inputs["out"] if "out" in inputs else inputs["source"])


def write_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """Arguments of ``set_mla_kv_buffer``: distinct slots, padding, ``bad`` ids, sliced parts."""
    generator = torch.Generator().manual_seed(seed)
    c, interleave, n = (number(sizes, k) for k in ("dcp_size", "interleave", "n"))
    d1, d2, bad = (number(sizes, k) for k in ("d1", "d2", "bad"))
    width = c * interleave * 2
    slots = (-(-n // width) + 1) * width
    ids = width + torch.randperm(slots - width, generator=generator)[:n]
    ids[3::5] = torch.randint(-1, width, (len(ids[3::5]),), generator=generator)
    wrong = torch.randperm(n, generator=generator)[:bad]
    ids[wrong] = torch.where(wrong % 2 == 0, slots + wrong, -2 - wrong)
    kind = getattr(torch, str(sizes["dtype"]))
    projection = garbage((n, d1 + 3 + d2), kind, generator).to(device)
    return {
        "layer": garbage((slots // c, d1 + d2), kind, generator).to(device),
        "ids": ids.to(device),
        "k_nope": projection[:, :d1],
        "k_rope": projection[:, d1 + 3 :],
        "shard": shard_of(sizes),
        "first_slot": width,
        "slot_end": slots,
        "flag": CheckFlag(device),
    }


def write_bytes(inputs: Inputs) -> int:
    """All ids, and a c-th of the rows, read once and written once."""
    rows = nbytes(inputs["k_nope"], inputs["k_rope"]) // int(inputs["shard"].dcp_size)
    return nbytes(inputs["ids"]) + 2 * rows


def merge_inputs(sizes: Sizes, seed: int, device: torch.device | str) -> Inputs:
    """Arguments of ``merge_stacked``: a fifth of the shards empty."""
    generator = torch.Generator().manual_seed(seed)
    shape = (number(sizes, "dcp_size"), number(sizes, "queries"), number(sizes, "heads"))
    out = torch.randn(*shape, number(sizes, "d"), generator=generator)
    lse = torch.randn(shape, generator=generator) * 8
    empty = torch.rand(shape, generator=generator) < 0.2
    lse = torch.where(empty, -torch.inf, lse)
    # An empty shard's output is whatever the memory held.
    out = torch.where(empty[..., None], torch.nan, out)
    return {"out": out.to(device, getattr(torch, str(sizes["dtype"]))), "lse": lse.to(device)}


def merge_bytes(inputs: Inputs) -> int:
    """c partials read once, one written: its lse in float32."""
    out: Tensor = inputs["out"]
    lse: Tensor = inputs["lse"]
    return nbytes(out, lse, out[0]) + 4 * lse[0].numel()


def garbage(shape: tuple[int, ...], kind: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random bytes seen as ``kind``: of a float type, NaN and infinity among them."""
    size = torch.empty(0, dtype=kind).element_size()
    made = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=generator)
    return made.to(torch.uint8).view(kind)


def _ids_with_holes(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, _PAGES, shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.125, -1, ids)
