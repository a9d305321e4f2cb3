"""Offsets are 64-bit: each kernel goes past element 2**31 of a buffer that is mostly not there.

The host commits memory when it is touched, so the sixteen GiB that are never written cost nothing.
"""

import pytest
import torch
from torch import Tensor

from kvlab.attn import merge_stacked
from kvlab.index import Shard
from kvlab.ops import gather_rows, scatter_rows, set_mla_kv_buffer
from tests.ops.support import needs_interpreter

WIDE = 2**31
DEVICES = [
    pytest.param("cpu", marks=needs_interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def large(shape: tuple[int, ...], kind: torch.dtype, device: str) -> Tensor:
    """Memory of which only what is touched is committed, on a host."""
    try:
        return torch.empty(shape, dtype=kind, device=device)
    except RuntimeError as error:
        pytest.skip(f"no room for {shape} of {kind}: {str(error).splitlines()[0][:80]}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 4])
def test_rows_beyond_2_to_the_31_elements_are_copied_and_written(device: str, page: int) -> None:
    # Bytes of a row that only a byte divides: offsets in words are offsets in bytes.
    e, layers = 1021, 2
    rows_in_layer = (WIDE // e // page + 50) * page
    buffer = large((layers, rows_in_layer, e), torch.uint8, device)
    pages = torch.tensor([1, rows_in_layer // page - 1, WIDE // e // page + 3])
    rows = (pages[:, None] * page + torch.arange(page)).flatten().to(device)
    assert int(rows.max()) * e > WIDE
    source = torch.randint(0, 256, (layers * len(rows), e), dtype=torch.uint8).to(device)
    sums = torch.zeros(layers, 1, dtype=torch.int64, device=device)
    again, out = torch.zeros_like(sums), torch.empty_like(source)
    how = {"block_rows": 64, "page_size": page}
    scatter_rows(buffer, rows, source, sums=sums, backend="triton", **how)
    for layer in range(layers):
        for at, row in enumerate(rows.tolist()):
            assert torch.equal(buffer[layer, row], source[layer * len(rows) + at])
    gather_rows(buffer, rows, out, sums=again, backend="triton", **how)
    assert torch.equal(out, source)
    assert torch.equal(sums, again)
    assert int(sums.sum()) == int(source.sum(dtype=torch.int64))


@pytest.mark.parametrize("device", DEVICES)
def test_a_token_beyond_2_to_the_31_elements_is_stored(device: str) -> None:
    e, c = 1021, 2
    rows = WIDE // e + 50
    layer = large((rows, e), torch.uint8, device)
    ids = torch.tensor([c * (rows - 1), c * 3, c * (rows - 2) + 1], device=device)
    parts = torch.randint(0, 256, (3, e), dtype=torch.uint8).to(device)
    set_mla_kv_buffer(
        layer,
        ids,
        parts[:, :1000],
        parts[:, 1000:],
        Shard(c, 0),
        first_slot=c,
        slot_end=c * rows,
        backend="triton",
    )
    assert torch.equal(layer[rows - 1], parts[0])
    assert torch.equal(layer[3], parts[1])


@pytest.mark.parametrize("device", DEVICES)
def test_the_partial_of_a_rank_beyond_2_to_the_31_elements_is_merged(device: str) -> None:
    from kvlab.ops.kernels import merge

    # One program only: the first row of each rank, the last of which lies beyond the mark.
    ranks, d = 8, 64
    rows = WIDE // d // (ranks - 1) + 1
    out = large((ranks, rows, d), torch.bfloat16, device)
    lse = large((ranks, rows), torch.float32, device)
    assert (ranks - 1) * rows * d > WIDE
    out[:, 0] = torch.randn(ranks, d).to(out)
    lse[:, 0] = torch.randn(ranks).to(lse)
    merged = torch.empty(1, d, dtype=torch.bfloat16, device=device)
    merged_lse = torch.empty(1, device=device)
    merge._merge[(1, 1)](out, lse, merged, merged_lse, rows, D=d, RANKS=ranks, TILE=1, STRETCH=d)
    wanted = merge_stacked(out[:, :1], lse[:, :1])
    # Both are rounded to bfloat16, so they may differ by one step, as the spec of the op says.
    near = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(merged, wanted.out, rtol=near, atol=1e-5)
    torch.testing.assert_close(merged_lse, wanted.lse)


@pytest.mark.parametrize("device", DEVICES)
def test_the_slots_of_positions_beyond_2_to_the_31_are_localized(device: str) -> None:
    from kvlab.ops.kernels import localize

    # One program only: this rank's tokens from the mark on, of a run that begins far before it.
    ids = large((WIDE + 32,), torch.int64, device)
    ids[WIDE:] = torch.arange(100, 132, device=device)
    rows = torch.full((16,), -7, device=device)
    localize._run[(1,)](ids, rows, 16, 1, 0, WIDE // 2, C=2, I=1, BLOCK=16)
    assert rows.tolist() == list(range(50, 66))
