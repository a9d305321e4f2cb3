"""Writes whose ids are looked at by the kernel that stores them: a GPU pool's, here on the CPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import IndexSpaceError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import MLATokenToKVPool
from kvlab.memory.codec import RowCodec
from kvlab.memory.flagged import FlaggedWrites, stored_parts

from .staged import slots_from
from .support import DTYPES, bits, ids, layouts, make_pools, untouched, write

ONES, ONE = torch.ones(3, 2), torch.ones(3, 1)
LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19


def flagged(pools: list[MLATokenToKVPool]) -> list[MLATokenToKVPool]:
    for pool in pools:
        pool.flagged = FlaggedWrites(pool.row_layout, pool.row_rank, pool.device)
    return pools


@given(
    layout=layouts(),
    kind=st.sampled_from(("sharded", "replicated")),
    dtype=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_the_same_rows_are_stored_as_when_the_host_looks_first(
    layout: DcpLayout, kind: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    slot = st.integers(layout.first_slot, layout.slot_end - 1)
    chosen = data.draw(st.lists(slot, unique=True, max_size=12))
    chosen += data.draw(st.lists(st.integers(-1, layout.first_slot - 1), max_size=3))
    slots = ids(data.draw(st.permutations(chosen)))
    plain = make_pools(layout, kind, dtype=dtype)
    pools = flagged(make_pools(layout, kind, dtype=dtype))
    values = torch.randn(2, len(slots), 3, generator=torch.Generator().manual_seed(1))
    for group in (plain, pools):
        write(group, slots, values)
    for one, other in zip(plain, pools, strict=True):
        assert torch.equal(bits(one.buffer), bits(other.buffer))
        assert other.audit() == []


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_rows_take_their_scale_along(dtype: torch.dtype) -> None:
    sizes = {"layers": 1, "kv_lora_rank": 3, "qk_rope_head_dim": 2}
    plain, pool = (
        MLATokenToKVPool(LAYOUT, 1, dtype=dtype, scaled=True, **sizes)  # type: ignore[arg-type]
        for _ in range(2)
    )
    flagged([pool])
    slots = slots_from(4, 9)
    for one in (plain, pool):
        one.set_mla_kv_buffer(0, slots, torch.randn(9, 3) * 0 + 0.3, torch.ones(9, 2))
    assert torch.equal(plain.buffer, pool.buffer)


@pytest.mark.parametrize(("bad", "at"), [(20, 2), (2**62, 1), (-2, 0)])
@pytest.mark.parametrize("how", ["backup", "restore", "audit"])
def test_a_slot_past_the_layout_is_stored_by_nobody_and_told_at_the_next_wait(
    bad: int, at: int, how: str
) -> None:
    for pool in flagged(make_pools(LAYOUT)):
        backup = pool.get_cpu_copy(slots_from(4, 3))
        loc = [4, 5, 6]
        loc[at] = bad
        unchanged = untouched([pool])
        pool.set_mla_kv_buffer(0, ids([slot if slot == bad else -1 for slot in loc]), ONES, ONE)
        unchanged()
        text = (
            rf"^write slot must lie in \[-1, 20\): the id at index {at} of an earlier write did "
            r"not, and was stored by nobody; .*; look at the ids of the writes since the last back"
        )
        law = f"a write named a slot outside [-1, 20), at index {at}"
        assert pool.audit() == [law]
        if how == "backup":
            with pytest.raises(IndexSpaceError, match=text):
                pool.get_cpu_copy(slots_from(4, 3))
        elif how == "restore":
            with pytest.raises(IndexSpaceError, match=text):
                pool.load_cpu_copy(backup, slots_from(8, 3))
        else:
            return
        assert pool.audit() == []  # told once
        pool.load_cpu_copy(backup, slots_from(8, 3))


def test_shapes_and_layers_are_refused_at_once() -> None:
    (pool, _) = flagged(make_pools(LAYOUT))
    unchanged = untouched([pool])
    two, n, r = ids([4, 5]), torch.ones(2, 2), torch.ones(2, 1)
    for args, text in (
        ((0, two, n[:1], r), r"k_nope must have shape \(2, 2\), one row a slot: got \(1, 2\)"),
        ((0, two, n, n), r"k_rope must have shape \(2, 1\)"),
        ((2, two, n, r), r"layer must lie in \[0, 2\): got 2"),
        ((0, two, None, r), "k_nope must be a tensor of a float dtype: got NoneType"),
    ):
        with pytest.raises(PoolError, match=text):
            pool.set_mla_kv_buffer(*args)
    with pytest.raises(IndexSpaceError, match="loc must be an int64 tensor"):
        pool.set_mla_kv_buffer(0, [4, 5], n, r)  # type: ignore[arg-type]
    unchanged()


def test_a_pool_behind_a_page_table_looks_first_and_so_does_one_of_the_cpu() -> None:
    for kind in ("sharded", "resolved"):
        (pool, _) = make_pools(LAYOUT, kind)
        assert pool.flagged is None
        with pytest.raises(IndexSpaceError, match=r"got 20 at index 0"):
            pool.set_mla_kv_buffer(0, WidenedSlots(ids([20])), torch.ones(1, 2), torch.ones(1, 1))


def test_parts_in_the_stored_dtype_reach_the_kernel_uncopied() -> None:
    codec, whole = RowCodec(torch.bfloat16, 3), torch.ones(5, 3, dtype=torch.bfloat16)
    nope, rope = whole[:, :2], whole[:, 2:]
    parts = stored_parts(nope, rope, 5, (2, 1), codec, nope.device)
    assert [part.data_ptr() for part in parts] == [nope.data_ptr(), rope.data_ptr()]
    assert not parts[0].is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_parts_of_any_strides_dtypes_and_gradients_are_stored(
    dtype: torch.dtype, scaled: bool
) -> None:
    if scaled and dtype.itemsize != 1:
        return
    sizes = {"layers": 1, "kv_lora_rank": 3, "qk_rope_head_dim": 2}
    values = torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
    for kind in (torch.float32, torch.bfloat16, dtype):
        turned = values.to(kind).t().contiguous().t()  # the elements of a row lie apart
        for nope, rope in (
            (turned[:, :3], turned[:, 3:5]),
            (values.to(kind)[:, ::3], values.to(kind)[:, 1::5]),
            (values.to(kind)[:1].expand(4, 9)[:, :3], turned[:, 3:5]),
        ):
            plain, pool = (
                MLATokenToKVPool(LAYOUT, 1, dtype=dtype, scaled=scaled, **sizes)  # type: ignore[arg-type]
                for _ in range(2)
            )
            flagged([pool])
            for one in (plain, pool):
                one.set_mla_kv_buffer(0, slots_from(5, 4), nope, rope)
            assert torch.equal(bits(plain.buffer), bits(pool.buffer))
    graded = values[:, :3].clone().requires_grad_()
    pool.set_mla_kv_buffer(0, slots_from(5, 4), graded, values[:, 3:5])
    assert not pool.buffer.requires_grad
