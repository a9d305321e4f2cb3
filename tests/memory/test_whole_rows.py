"""Whole rows at places that were localized before: the same bytes as a write to the slots."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import PoolError
from kvlab.index import WidenedSlots

from .support import DTYPES, KINDS, SMALL, bits, make_pools

LAYOUT_SLOTS = 24  # of SMALL: slots 8..31


@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(0, LAYOUT_SLOTS),
    seed=st.integers(0, 99),
)
def test_whole_rows_are_stored_as_a_write_to_their_slots_stores_them(
    kind: str, dtype: torch.dtype, n: int, seed: int
) -> None:
    slots = WidenedSlots(torch.arange(8, 8 + n))
    values = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
    by_slot, by_row = make_pools(SMALL, kind, dtype=dtype), make_pools(SMALL, kind, dtype=dtype)
    for one, two in zip(by_slot, by_row, strict=True):
        one.set_mla_kv_buffer(1, slots, values[:, :2], values[:, 2:])
        rows = two.resolve(slots)
        two.put_rows(1, rows, values[rows.source])
        assert torch.equal(bits(one.buffer), bits(two.buffer))
        if dtype.itemsize != 1:
            assert torch.equal(two.get_rows(1, rows), values[rows.source].to(dtype))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (torch.zeros(2, 2), r"rows must have shape \(\d, 3\), all elements of each: got \(2, 2\)"),
        (torch.zeros(9, 3), r"got \(9, 3\)"),
        (torch.zeros(2, 3, dtype=torch.int64), r"a tensor of a float dtype: got torch\.int64"),
        (None, "a tensor of a float dtype: got NoneType"),
    ],
)
def test_what_is_no_row_is_refused(values: torch.Tensor, text: str) -> None:
    (pool, *_) = make_pools(SMALL)
    rows = pool.resolve(WidenedSlots(torch.arange(8, 16)))
    before = bits(pool.buffer).clone()
    with pytest.raises(PoolError, match=text):
        pool.put_rows(0, rows, values)
    assert torch.equal(bits(pool.buffer), before)


def test_places_that_were_not_localized_are_refused() -> None:
    (pool, *_) = make_pools(SMALL)
    with pytest.raises(ValueError, match="a read takes PhysicalRows, got Tensor"):
        pool.put_rows(0, torch.tensor([1]), torch.zeros(1, 3))  # type: ignore[arg-type]
