"""Everything that a pool refuses, in its words; then the buffer is as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvlab.errors import IndexSpaceError, KvlabError, LayoutError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory import MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool

from .support import KINDS, bits, ids, make_pools, refused_by_all, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19, rows 2..9
N, R, TWO = torch.ones(2, 2), torch.ones(2, 1), ids([4, 5])
SLOTS = WidenedSlots(TWO)
ROWS = localize(SLOTS, LAYOUT, 0)
every_kind = pytest.mark.parametrize("kind", KINDS)

WRITES: list[tuple[dict[str, Any], type[KvlabError], str]] = [
    (
        {"loc": ids([4, 20])},
        IndexSpaceError,
        r"^write slot must lie in \[-1, 20\): got 20 at index 1; 1 of 2 ids are outside; write ids "
        r"are widened slots, -1 is a hole; 10 is the bound of a row of a sharded pool, not of a sl",
    ),
    ({"loc": ids([-2, 4])}, IndexSpaceError, r"\[-1, 20\): got -2 at index 0"),
    ({"loc": ids([4, 2**62])}, IndexSpaceError, r"got 4611686018427387904 at index 1"),
    ({"loc": ids([4, -(2**63)])}, IndexSpaceError, r"got -9223372036854775808 at index 1"),
    ({"loc": TWO.float()}, IndexSpaceError, r"loc must be int64 or int32, got torch\.float32: "),
    ({"loc": TWO[None]}, IndexSpaceError, r"loc must have shape \(n,\), got \(1, 2\)"),
    ({"loc": [4, 5]}, IndexSpaceError, r"loc must be an int64 tensor of shape \(n,\), got list"),
    ({"loc": None}, IndexSpaceError, r"of shape \(n,\), got NoneType"),
    ({"loc": ROWS}, IndexSpaceError, r"loc must be raw ids, got PhysicalRows of rank 0: they are"),
    (
        {"k_nope": N[:1]},
        PoolError,
        r"^k_nope must have shape \(2, 2\), one row a slot: got \(1, 2\)$",
    ),
    ({"k_nope": N[:, None]}, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1, 2\)"),
    ({"k_rope": R[:, 0]}, PoolError, r"k_rope must have shape \(2, 1\), .* got \(2,\)"),
    ({"k_nope": R, "k_rope": N}, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1\)"),
    ({"loc": ids([])}, PoolError, r"k_nope must have shape \(0, 2\), .* got \(2, 2\)"),
    ({"k_nope": N.long()}, PoolError, r"^k_nope must be a tensor of a float dtype: got torch\.int"),
    ({"k_rope": R.numpy()}, PoolError, r"k_rope must be a tensor of a float dtype: got ndarray"),
    ({"k_rope": None}, PoolError, r"k_rope must be a tensor of a float dtype: got NoneType"),
    ({"layer": 2}, PoolError, r"^layer must lie in \[0, 2\): got 2$"),
    ({"layer": -1}, PoolError, r"layer must lie in \[0, 2\): got -1"),
    ({"layer": True}, IndexSpaceError, r"layer must be an int: got True \(bool\)"),
    ({"layer": slice(0, 1)}, IndexSpaceError, r"layer must be an int: got slice"),
]


@every_kind
@pytest.mark.parametrize(("changed", "error", "text"), WRITES)
def test_a_write_that_is_refused(
    kind: str, changed: dict[str, Any], error: type[KvlabError], text: str
) -> None:
    call = {"layer": 0, "loc": TWO, "k_nope": N, "k_rope": R} | changed
    refused_by_all(LAYOUT, kind, error, text, lambda pool: pool.set_mla_kv_buffer(**call))


@every_kind
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
        (slice(None), IndexSpaceError, r"a read takes PhysicalRows, got slice"),
        (
            localize(SLOTS, DcpLayout(2, 2, 5), 0),
            RankMismatchError,
            r"^rows of rank 0 \(DcpLayout\(dcp_size=2, page_size=2, num_pages=5, interleave=1\)\) "
            r"cannot index the pool of rank \d \(DcpLayout\(.*\)\); each rank localizes for itself",
        ),
        (localize(SLOTS, DcpLayout(2, 2, 4, 2), 0), RankMismatchError, r"interleave=2\)\) cannot"),
    ],
)
def test_rows_of_another_place_are_neither_read_nor_written(
    kind: str, rows: Any, error: type[KvlabError], text: str
) -> None:
    for call in (
        lambda pool: pool.get_mla_kv_buffer(0, rows),
        lambda pool: pool.put_rows(0, rows, torch.ones(1, 3)),
        lambda pool: pool.fill(rows, 1.0),
    ):
        refused_by_all(LAYOUT, kind, error, text, call)


@pytest.mark.parametrize("kind", ["sharded", "resolved"])
def test_a_read_of_another_ranks_rows_is_refused(kind: str) -> None:
    pools = make_pools(LAYOUT, kind)
    for pool, other in zip(pools, reversed(pools), strict=True):
        rows = other.resolve(SLOTS)
        text = rf"rows of rank {other.rank} .* cannot index the pool of rank {pool.rank} "
        with pytest.raises(RankMismatchError, match=text):
            pool.get_mla_kv_buffer(0, rows)
        with pytest.raises(RankMismatchError, match=text):
            pool.get_cpu_copy(rows)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (torch.zeros(2, 2), r"rows must have shape \(\d, 3\), one row a slot: got \(2, 2\)"),
        (torch.zeros(2, 3, dtype=torch.int64), r"a tensor of a float dtype: got torch\.int64"),
        (None, "a tensor of a float dtype: got NoneType"),
    ],
)
def test_what_is_no_whole_row_is_refused(values: Any, text: str) -> None:
    for pool in make_pools(LAYOUT):
        with pytest.raises(PoolError, match=text):
            pool.put_rows(0, pool.resolve(SLOTS), values)
        assert not pool.buffer.any()


@every_kind
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
def test_a_move_that_is_refused(kind: str, target: Any, source: Any, text: str) -> None:
    refused_by_all(
        LAYOUT, kind, IndexSpaceError, text, lambda pool: pool.move_kv_cache(target, source)
    )


@pytest.mark.parametrize("kind", ["sharded", "resolved"])
@pytest.mark.parametrize("turn", [1, 2])
def test_a_move_between_ranks_is_refused_by_all_of_them(kind: str, turn: int) -> None:
    # Upstream issue 31218, case c13. At interleave 2 slots 4, 5 are rank 0's and 6, 7 rank 1's.
    pools = make_pools(DcpLayout(2, 2, 4, turn), kind)
    scramble(pools, seed=1)
    target, source = (ids([8, 6]), ids([10, 5])) if turn == 1 else (ids([8, 6]), ids([9, 5]))
    text = (
        rf"a move is local to one rank: source slot 5 \(rank {2 - turn}\) and target slot 6 \(rank "
        rf"{turn - 1}\) at index 1 have different owners; choose a target "
    )
    for pool in pools:
        before = pool.buffer.clone()
        with pytest.raises(IndexSpaceError, match=text):
            pool.move_kv_cache(target, source)
        assert torch.equal(bits(pool.buffer), bits(before))


@every_kind
@pytest.mark.parametrize(
    ("slots", "text"),
    [
        (TWO, r"localize takes WidenedSlots, got Tensor; wrap the ids: WidenedSlots\(ids, start="),
        (WidenedSlots(ids([3, 2])), r"widened slot must lie in \[4, 20\): got 3 at index 0; 2 of"),
        (WidenedSlots(ids([20, 21])), r"widened slot must lie in \[4, 20\): got 20 at index 0"),
        (WidenedSlots(ids([4, -1])), r"got -1 at index 1"),
    ],
)
def test_a_run_that_has_no_rows(kind: str, slots: Any, text: str) -> None:
    refused_by_all(LAYOUT, kind, IndexSpaceError, text, lambda pool: pool.resolve(slots))
    refused_by_all(LAYOUT, kind, IndexSpaceError, text, lambda pool: pool.get_cpu_copy(slots))


def test_rows_past_the_buffer_cannot_be_declared() -> None:
    with pytest.raises(IndexSpaceError, match=r"row must lie in \[0, 10\): got 10 at index 1"):
        PhysicalRows.assume_physical(ids([9, 10]), LAYOUT, 0)


@pytest.mark.parametrize("kind", [MLATokenToKVPool, ReplicatedKVPool, UnifiedKVPool])
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rank": 2}, LayoutError, r"rank must lie in \[0, 2\): got rank=2 with dcp_size=2"),
        ({"rank": -1}, LayoutError, r"rank must be at least 0"),
        ({"rank": True}, LayoutError, r"rank must be an int"),
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
        ({"dtype": "bf16"}, PoolError, r"got bf16"),
    ],
)
def test_a_pool_that_cannot_be(
    kind: Callable[..., MLATokenToKVPool],
    options: dict[str, Any],
    error: type[KvlabError],
    text: str,
) -> None:
    given = {"rank": 0, "layers": 1, "kv_lora_rank": 1} | options
    over = PageTable(LAYOUT, physical_pages=1) if kind is UnifiedKVPool else LAYOUT
    with pytest.raises(error, match=text):
        kind(over, given.pop("rank"), **given)


@every_kind
def test_what_is_odd_but_right_is_served(kind: str) -> None:
    (pool, _) = make_pools(LAYOUT, kind)
    none = ids([])
    pool.set_mla_kv_buffer(0, none, torch.empty(0, 2), torch.empty(0, 1))
    pool.move_kv_cache(none, none)
    rows = pool.resolve(WidenedSlots(none, start=7))
    nope, rope = pool.get_mla_kv_buffer(0, rows)
    assert (nope.shape, rope.shape) == ((0, 2), (0, 1))
    # NumPy's ints and 0-d tensors are ints; int32 ids are ids.
    for layer in (np.int64(1), torch.tensor(1)):
        pool.set_mla_kv_buffer(layer, ids([4, -1]).to(torch.int32), N, R)  # type: ignore[arg-type]
    pool.move_kv_cache(ids([6]).to(torch.int32), ids([4]))
    nope, _ = pool.get_mla_kv_buffer(1, pool.resolve(WidenedSlots(ids([4, 6]).to(torch.int32))))
    assert torch.equal(nope, N)
