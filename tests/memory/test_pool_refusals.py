"""Everything that a pool refuses, in its words; then the buffer is as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvlab.errors import IndexSpaceError, KvlabError, LayoutError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, WidenedSlots, localize
from kvlab.memory import MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool

from .support import KINDS, bits, ids, make_pools, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19, rows 2..9
N, R, TWO = torch.ones(2, 2), torch.ones(2, 1), ids([4, 5])
SLOTS = WidenedSlots(TWO)
ROWS = localize(SLOTS, LAYOUT, 0)


def refused_by_all(
    kind: str,
    error: type[KvlabError],
    text: str,
    call: Callable[[Any], object],
    layout: DcpLayout = LAYOUT,
) -> None:
    """``call(pool)`` raises on every rank, and the buffer stays as it was."""
    pools = make_pools(layout, kind)
    scramble(pools, seed=1)
    for pool in pools:
        before = bits(pool.buffer).clone()
        with pytest.raises(error, match=text) as caught:
            call(pool)
        assert type(caught.value) is error
        assert torch.equal(bits(pool.buffer), before)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        (
            {"loc": ids([4, 20])},
            IndexSpaceError,
            r"^write slot must lie in \[-1, 20\): got 20 at index 1; 1 of 2 ids are outside; write "
            r"ids are widened slots, -1 is a hole; \d+ is the bound of a row of a sharded pool, no",
        ),
        ({"loc": ids([-2, 4])}, IndexSpaceError, r"\[-1, 20\): got -2 at index 0"),
        ({"loc": ids([4, 2**62])}, IndexSpaceError, r"got 4611686018427387904 at index 1"),
        ({"loc": TWO.float()}, IndexSpaceError, r"loc must be int64 or int32, got torch\.float32"),
        ({"loc": TWO[None]}, IndexSpaceError, r"loc must have shape \(n,\), got \(1, 2\)"),
        ({"loc": [4, 5]}, IndexSpaceError, r"loc must be an int64 tensor of shape \(n,\), got li"),
        ({"loc": ROWS}, IndexSpaceError, r"loc must be raw ids, got PhysicalRows of rank 0: they"),
        ({"k_nope": N[:1]}, PoolError, r"^k_nope must have shape \(2, 2\), .*: got \(1, 2\)$"),
        ({"k_rope": R[:, 0]}, PoolError, r"k_rope must have shape \(2, 1\), .* got \(2,\)"),
        ({"k_nope": R, "k_rope": N}, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1"),
        ({"loc": ids([])}, PoolError, r"k_nope must have shape \(0, 2\), .* got \(2, 2\)"),
        ({"k_nope": N.long()}, PoolError, r"^k_nope must be a tensor of a float dtype: got torch"),
        ({"k_rope": None}, PoolError, r"k_rope must be a tensor of a float dtype: got NoneType"),
        ({"layer": 2}, PoolError, r"^layer must lie in \[0, 2\): got 2$"),
        ({"layer": -1}, PoolError, r"layer must lie in \[0, 2\): got -1"),
        ({"layer": True}, IndexSpaceError, r"layer must be an int: got True \(bool\)"),
    ],
)
def test_a_write_that_is_refused(
    changed: dict[str, Any], error: type[KvlabError], text: str
) -> None:
    call = {"layer": 0, "loc": TWO, "k_nope": N, "k_rope": R} | changed
    for kind in KINDS:
        refused_by_all(kind, error, text, lambda pool: pool.set_mla_kv_buffer(**call))


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        (
            TWO,
            IndexSpaceError,
            r"^a read takes PhysicalRows, got Tensor: a buffer has rows, not slots; call "
            r"pool\.resolve\(slots\) first$",
        ),
        (SLOTS, IndexSpaceError, r"a read takes PhysicalRows, got WidenedSlots"),
        (
            localize(SLOTS, DcpLayout(2, 2, 5), 0),
            RankMismatchError,
            r"^rows of rank 0 \(DcpLayout\(dcp_size=2, page_size=2, num_pages=5, interleave=1\)\) "
            r"cannot index the pool of rank \d \(DcpLayout\(.*\)\); each rank localizes for itself",
        ),
    ],
)
def test_rows_of_another_place_are_neither_read_nor_written(
    rows: Any, error: type[KvlabError], text: str
) -> None:
    for call in (
        lambda pool: pool.get_mla_kv_buffer(0, rows),
        lambda pool: pool.put_rows(0, rows, torch.ones(1, 3)),
        lambda pool: pool.fill(rows, 1.0),
    ):
        for kind in KINDS:
            refused_by_all(kind, error, text, call)


@pytest.mark.parametrize("kind", ["sharded", "resolved"])
def test_a_read_of_another_ranks_rows_is_refused(kind: str) -> None:
    pools = make_pools(LAYOUT, kind)
    for pool, other in zip(pools, reversed(pools), strict=True):
        rows = other.resolve(SLOTS)
        text = rf"rows of rank {other.rank} .* cannot index the pool of rank {pool.rank} "
        for call in (lambda pool, rows: pool.get_rows(0, rows), MLATokenToKVPool.get_cpu_copy):
            with pytest.raises(RankMismatchError, match=text):
                call(pool, rows)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (torch.zeros(2, 2), r"have shape \(\d, 3\), one row a slot: got \(2, 2\)"),
        (torch.zeros(2, 3).long(), "be a tensor of a flo"),
    ],
)
def test_what_is_no_whole_row_is_refused(values: torch.Tensor, text: str) -> None:
    refused_by_all(
        "sharded",
        PoolError,
        f"rows must {text}",
        lambda pool: pool.put_rows(0, pool.resolve(SLOTS), values),
    )


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        (ids([4]), ids([20]), r"^source slot must lie in \[4, 20\): got 20 at index 0; .*padding"),
        (ids([3]), ids([5]), r"target slot must lie in \[4, 20\): got 3 at index 0"),
        (ids([-1]), ids([5]), r"target slot must lie in \[4, 20\): got -1"),
        (ids([4, 6]), ids([8]), r"a move pairs each source with one target: got 2 targets and 1"),
        (
            ids([4, 8, 6, 8]),
            ids([6, 10, 8, 12]),
            r"^a move names each target slot once: got slot 8 at index 1 and at index 3 of 4 targ",
        ),
        (ids([4]), [4], r"source slots must be an int64 tensor of shape \(n,\), got list"),
        (SLOTS, TWO, r"target slots must be a raw tensor, got WidenedSlots"),
        (TWO, ROWS, r"source slots must be raw ids, got Physica"),
    ],
)
def test_a_move_that_is_refused(target: Any, source: Any, text: str) -> None:
    for kind in KINDS:
        refused_by_all(kind, IndexSpaceError, text, lambda pool: pool.move_kv_cache(target, source))


@pytest.mark.parametrize("turn", [1, 2])
def test_a_move_between_two_owners_is_refused(turn: int) -> None:
    # Upstream issue 31218, case c13. At interleave 2 slots 4, 5 are rank 0's and 6, 7 rank 1's.
    target, source = (ids([8, 6]), ids([10, 5])) if turn == 1 else (ids([8, 6]), ids([9, 5]))
    text = (
        rf"a move is local to one rank: source slot 5 \(rank {2 - turn}\) and target slot 6 \(rank "
        rf"{turn - 1}\) at index 1 have different owners; choose a target "
    )
    for kind in ("sharded", "resolved"):
        refused_by_all(
            kind,
            IndexSpaceError,
            text,
            lambda pool: pool.move_kv_cache(target, source),
            DcpLayout(2, 2, 4, turn),
        )


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        (TWO, r"localize takes WidenedSlots, got Tensor; wrap the ids: WidenedSlots\(ids, start="),
        (WidenedSlots(ids([3, 2])), r"widened slot must lie in \[4, 20\): got 3 at index 0; 2 of"),
        (WidenedSlots(ids([20, 21])), r"widened slot must lie in \[4, 20\): got 20 at index 0"),
        (WidenedSlots(ids([4, -1])), r"got -1 at index 1"),
    ],
)
def test_a_run_that_has_no_rows(slots: Any, text: str) -> None:
    for kind in KINDS:
        refused_by_all(kind, IndexSpaceError, text, lambda pool: pool.resolve(slots))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 2}, LayoutError, r"rank must lie in \[0, 2\): got rank=2 with dcp_size=2"),
        ({"rank": -1}, LayoutError, r"rank must be at least 0"),
        ({"layers": 0}, LayoutError, r"layers must be at least 1: MLA layers; got layers=0"),
        ({"layers": 2.0}, LayoutError, r"layers must be an int: MLA layers; got 2\.0 \(float\)"),
        ({"kv_lora_rank": 0}, LayoutError, r"kv_lora_rank must be at least 1: elements of the"),
        ({"qk_rope_head_dim": -1}, LayoutError, r"qk_rope_head_dim must be at least 0: elements"),
        (
            {"dtype": torch.float64},
            PoolError,
            r"^a row is stored as one of torch\.float32, torch\.bfloat16, torch\.float16, "
            r"torch\.float8_e4m3fn, torch\.float8_e5m2: got torch\.float64$",
        ),
    ],
)
def test_a_pool_that_cannot_be(options: dict[str, Any], error: type[KvlabError], text: str) -> None:
    kinds: list[tuple[Callable[..., object], object]] = [
        (MLATokenToKVPool, LAYOUT),
        (ReplicatedKVPool, LAYOUT),
        (UnifiedKVPool, PageTable(LAYOUT, physical_pages=1)),
    ]
    for kind, over in kinds:
        given = {"rank": 0, "layers": 1, "kv_lora_rank": 1} | options
        with pytest.raises(error, match=text):
            kind(over, given.pop("rank"), **given)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_odd_but_right_is_served(kind: str) -> None:
    (pool, _) = make_pools(LAYOUT, kind)
    none = ids([])
    pool.set_mla_kv_buffer(0, none, torch.empty(0, 2), torch.empty(0, 1))
    pool.move_kv_cache(none, none)
    rows = pool.resolve(WidenedSlots(none, start=7))
    nope, rope = pool.get_mla_kv_buffer(0, rows)
    assert (nope.shape, rope.shape) == ((0, 2), (0, 1))
    # NumPy's ints and 0-d tensors are ints; int32 ids are ids.
    layer: Any
    for layer in (np.int64(1), torch.tensor(1)):
        pool.set_mla_kv_buffer(layer, ids([4, -1]).to(torch.int32), N, R)
    pool.move_kv_cache(ids([6]).to(torch.int32), ids([4]))
    nope, _ = pool.get_mla_kv_buffer(1, pool.resolve(WidenedSlots(ids([4, 6]).to(torch.int32))))
    assert torch.equal(nope, N)
