"""Reads, moves, runs and sizes that a pool refuses, in its words; the buffer is as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError, KvlabError, LayoutError, PoolError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory import MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool

from .support import KINDS, bits, ids, make_pools, refused_by_all, scramble

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19, rows 2..9
N = torch.ones(2, 2)
R = torch.ones(2, 1)
TWO = ids([4, 5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        (
            TWO,
            IndexSpaceError,
            r"^a read takes PhysicalRows, got Tensor: a buffer has rows, not slots; call "
            r"pool\.resolve\(slots\) first$",
        ),
        (WidenedSlots(TWO), IndexSpaceError, r"a read takes PhysicalRows, got WidenedSlots"),
        ([4, 5], IndexSpaceError, r"a read takes PhysicalRows, got list"),
        (4, IndexSpaceError, r"a read takes PhysicalRows, got int"),
        (None, IndexSpaceError, r"a read takes PhysicalRows, got NoneType"),
        (slice(None), IndexSpaceError, r"a read takes PhysicalRows, got slice"),
        (
            localize(WidenedSlots(TWO), DcpLayout(2, 2, 5), 0),
            RankMismatchError,
            r"^rows of rank 0 \(DcpLayout\(dcp_size=2, page_size=2, num_pages=5, interleave=1\)\) "
            r"cannot index the pool of rank \d \(DcpLayout\(.*\)\); each rank localizes for "
            r"itself$",
        ),
        (
            localize(WidenedSlots(TWO), DcpLayout(2, 2, 4, 2), 0),
            RankMismatchError,
            r"interleave=2\)\) cannot index the pool of rank",
        ),
    ],
)
def test_a_read_that_is_refused(kind: str, rows: Any, error: type[KvlabError], text: str) -> None:
    refused_by_all(LAYOUT, kind, error, text, lambda pool: pool.get_mla_kv_buffer(0, rows))


@pytest.mark.parametrize("kind", ["sharded", "resolved"])
def test_a_read_of_another_ranks_rows_is_refused(kind: str) -> None:
    pools = make_pools(LAYOUT, kind)
    for pool, other in zip(pools, reversed(pools), strict=True):
        rows = other.resolve(WidenedSlots(TWO))
        text = rf"rows of rank {other.rank} .* cannot index the pool of rank {pool.rank} "
        with pytest.raises(RankMismatchError, match=text):
            pool.get_mla_kv_buffer(0, rows)
        with pytest.raises(RankMismatchError, match=text):
            pool.get_cpu_copy(rows)


@pytest.mark.parametrize("layer", [2, -1, True, 1.0, None])
def test_a_read_of_no_layer_is_refused(layer: Any) -> None:
    pool = make_pools(LAYOUT)[0]
    rows = pool.resolve(WidenedSlots(TWO))
    with pytest.raises(
        (PoolError, IndexSpaceError), match=r"layer must (lie in \[0, 2\)|be an int)"
    ):
        pool.get_mla_kv_buffer(layer, rows)


def test_rows_past_the_buffer_cannot_be_declared() -> None:
    with pytest.raises(IndexSpaceError, match=r"row must lie in \[0, 10\): got 10 at index 1"):
        PhysicalRows.assume_physical(ids([9, 10]), LAYOUT, 0)
    with pytest.raises(IndexSpaceError, match=r"row must lie in \[0, 10\): got -1"):
        PhysicalRows.assume_physical(ids([-1]), LAYOUT, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        (
            ids([4]),
            ids([20]),
            r"^source slot must lie in \[4, 20\): got 20 at index 0; .*padding pa",
        ),
        (ids([3]), ids([5]), r"target slot must lie in \[4, 20\): got 3 at index 0"),
        (ids([-1]), ids([5]), r"target slot must lie in \[4, 20\): got -1"),
        (
            ids([4, 6]),
            ids([8]),
            r"a move pairs each source with one target: got 2 targets and 1 so",
        ),
        (
            ids([4, 8, 6, 8]),
            ids([6, 10, 8, 12]),
            r"^a move names each target slot once: got slot 8 at index 1 and at index 3 of 4 targ",
        ),
        (ids([4]), [4], r"source slots must be an int64 tensor of shape \(n,\), got list"),
        (4, ids([4]), r"target slots must be an int64 tensor of shape \(n,\), got int"),
        (ids([4]).double(), ids([4]), r"target slots must be int64 or int32, got torch\.float64"),
        (WidenedSlots(TWO), TWO, r"target slots must be a raw tensor, got WidenedSlots"),
        (TWO, localize(WidenedSlots(TWO), LAYOUT, 0), r"source slots must be raw ids, got Physica"),
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("slots", "text"),
    [
        (TWO, r"localize takes WidenedSlots, got Tensor; wrap the ids: WidenedSlots\(ids, start="),
        ([4, 5], r"localize takes WidenedSlots, got list"),
        (
            WidenedSlots(ids([3, 2])),
            r"widened slot must lie in \[4, 20\): got 3 at index 0; 2 of 2",
        ),
        (WidenedSlots(ids([20, 21])), r"widened slot must lie in \[4, 20\): got 20 at index 0"),
        (WidenedSlots(ids([4, -1])), r"got -1 at index 1"),
    ],
)
def test_a_run_that_has_no_rows(kind: str, slots: Any, text: str) -> None:
    refused_by_all(LAYOUT, kind, IndexSpaceError, text, lambda pool: pool.resolve(slots))
    refused_by_all(LAYOUT, kind, IndexSpaceError, text, lambda pool: pool.get_cpu_copy(slots))


@pytest.mark.parametrize("kind", [MLATokenToKVPool, ReplicatedKVPool, UnifiedKVPool])
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"rank": 2},
            LayoutError,
            r"rank must lie in \[0, 2\): got rank=2 with dcp_size=2",
        ),
        ({"rank": -1}, LayoutError, r"rank must be at least 0"),
        ({"rank": True}, LayoutError, r"rank must be an int"),
        ({"layers": 0}, LayoutError, r"layers must be at least 1: MLA layers; got layers=0"),
        ({"layers": 2.0}, LayoutError, r"layers must be an int: MLA layers; got 2\.0 \(float\)"),
        (
            {"kv_lora_rank": 0},
            LayoutError,
            r"kv_lora_rank must be at least 1: elements of the late",
        ),
        (
            {"qk_rope_head_dim": -1},
            LayoutError,
            r"qk_rope_head_dim must be at least 0: elements of",
        ),
        (
            {"dtype": torch.float64},
            PoolError,
            r"^a row is stored as one of torch\.float32, torch\.bfloat16, torch\.float16, "
            r"torch\.float8_e4m3fn, torch\.float8_e5m2: got torch\.float64$",
        ),
        ({"dtype": torch.uint8}, PoolError, r"got torch\.uint8"),
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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_odd_but_right_is_served(kind: str) -> None:
    (pool, _) = make_pools(LAYOUT, kind)
    none: Tensor = ids([])
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


def test_a_device_is_a_device() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        MLATokenToKVPool(LAYOUT, 0, layers=1, device="nowhere")
    pool = MLATokenToKVPool(LAYOUT, 0, layers=1, device=torch.device("cpu"))
    assert (pool.device, pool.host.pinned) == (torch.device("cpu"), False)
