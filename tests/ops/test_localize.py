"""Laws of localization without a look at the values: counts, elements and rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import Shard, get_dcp_lens, localize_masked, owned_elements
from kvlab.ops import Backend, localize_run
from tests.ops.support import BACKENDS

shards = st.integers(1, 8).flatmap(
    lambda c: st.builds(Shard, st.just(c), st.integers(0, c - 1), st.integers(1, 6))
)
starts = st.integers(0, 200) | st.integers(2**62, 2**62 + 200)


@settings(max_examples=60)
@given(shard=shards, start=starts, n=st.integers(0, 300))
def test_the_elements_are_those_whose_position_the_rank_owns_and_the_lengths_count_them(
    shard: Shard, start: int, n: int
) -> None:
    elements = shard.elements(n, start)
    assert torch.equal(elements, owned_elements(torch.arange(start, start + n), shard))
    held = get_dcp_lens(torch.tensor([n]), shard, torch.tensor([start]))
    assert int(held) == len(elements) == shard.held(start + n) - shard.held(start)


@settings(max_examples=40)
@given(shard=shards, start=st.integers(0, 2**40), n=st.integers(0, 300), data=st.data())
def test_a_run_that_agrees_with_its_positions_gives_the_rows_of_the_mask(
    shard: Shard, start: int, n: int, data: st.DataObject
) -> None:
    pages = data.draw(st.permutations(range(1, n // shard.turn + 3)))
    positions = range(start, start + n)
    first = start // shard.turn
    slots = [pages[p // shard.turn - first] * shard.turn + p % shard.turn for p in positions]
    ids = torch.tensor(slots, dtype=torch.int64)
    rows = localize_run(ids, shard, start)
    assert torch.equal(rows, localize_masked(ids, shard))
    assert rows.numel() == 0 or rows.data_ptr() != ids.data_ptr()


@pytest.mark.parametrize("start", [0, 3])
def test_ids_of_32_bits_are_widened_before_any_product(start: int) -> None:
    ids = torch.arange(start, start + 9, dtype=torch.int32)
    rows = localize_run(ids, Shard(3, 1), start)
    assert rows.dtype == torch.int64
    assert torch.equal(rows, localize_masked(ids, Shard(3, 1)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("c", "interleave"), [(8, 2**29), (4, 2**31 - 1), (2, 2**40)])
def test_a_turn_longer_than_32_bits_is_localized(backend: Backend, c: int, interleave: int) -> None:
    shard = Shard(c, c - 1, interleave)
    start = shard.rank * interleave
    ids = torch.arange(start, start + 5) + 3 * c * interleave
    rows = localize_run(ids, shard, start, backend=backend)
    assert rows.tolist() == [3 * interleave + i for i in range(5)]
