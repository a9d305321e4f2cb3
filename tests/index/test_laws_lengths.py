"""Laws of lengths: what the ranks hold is a count of positions, and adds up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.index import Shard, get_dcp_chunk_lens, get_dcp_lens

from . import oracle
from .oracle import SIZES, ids

sizes, turns = st.sampled_from(SIZES), st.integers(1, 9)
counts = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6)


@given(counts, sizes, turns)
@settings(max_examples=60)
def test_each_rank_holds_the_positions_that_are_its_own(
    runs: list[tuple[int, int]], c: int, turn: int
) -> None:
    lens, starts = ids([n for n, _ in runs]), ids([start for _, start in runs])
    parts = [get_dcp_lens(lens, Shard(c, rank, turn), starts) for rank in range(c)]
    for rank, part in enumerate(parts):
        assert part.tolist() == [oracle.held_positions(s, n, c, rank, turn) for n, s in runs]
    assert torch.equal(torch.stack(parts).sum(0), lens)


@pytest.mark.parametrize("chunk", [2**62 + 5, 2**63 - 1])
def test_chunks_add_up_to_the_longest_run_too(chunk: int) -> None:
    table = get_dcp_chunk_lens(2**63 - 1, chunk, 3)
    assert sum(table.flatten().tolist()) == 2**63 - 1


@given(st.integers(0, 200), st.integers(1, 40), sizes, turns)
@settings(max_examples=60)
def test_chunks_add_up_along_both_axes(tokens: int, chunk: int, c: int, turn: int) -> None:
    table = get_dcp_chunk_lens(tokens, chunk, c, turn)
    assert table.shape == (max(1, -(-tokens // chunk)), c)
    assert table.sum(1).tolist() == [
        min(chunk, tokens - at) for at in range(0, max(tokens, 1), chunk)
    ]
    for rank in range(c):
        whole = get_dcp_lens(ids([tokens]), Shard(c, rank, turn))
        assert int(table[:, rank].sum()) == int(whole)
        assert table[:, rank].tolist() == [
            oracle.held_positions(at, min(chunk, tokens - at), c, rank, turn)
            for at in range(0, max(tokens, 1), chunk)
        ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_shape_and_dtype_of_the_lengths_are_kept(dtype: torch.dtype, shape: tuple[int]) -> None:
    lens = torch.full(shape, 7, dtype=dtype)
    for start in (None, torch.ones(shape, dtype=torch.int64), ids([1])[0]):
        part = get_dcp_lens(lens, Shard(2, 1), start)
        assert (part.dtype, part.shape) == (dtype, lens.shape)
        assert torch.equal(part, torch.full(shape, 3 if start is None else 4, dtype=dtype))


def test_one_start_for_all_runs_and_a_start_for_each_column_broadcast() -> None:
    lens = torch.full((2, 3), 7)
    assert get_dcp_lens(lens, Shard(2, 0), ids([0, 1, 2])).tolist() == [[4, 3, 4]] * 2
    assert get_dcp_lens(lens, Shard(2, 0), ids([1])).tolist() == [[3, 3, 3]] * 2
    assert get_dcp_lens(ids([0, 3]), Shard(2, 0), ids([0])).tolist() == [0, 2]  # an empty run


def test_int32_lengths_whose_end_exceeds_int32_do_not_wrap() -> None:
    top = 2**31 - 1
    lens, start = torch.tensor([top, 9], dtype=torch.int32), torch.tensor([top, top]).int()
    parts = torch.stack([get_dcp_lens(lens, Shard(2, rank), start).long() for rank in range(2)])
    assert parts.sum(0).tolist() == [top, 9]
    assert parts.tolist() == [[(top - 1) // 2, 4], [(top + 1) // 2, 5]]


@pytest.mark.parametrize("tokens", [2**53 - 1, 2**53 + 1, 2**62 + 5])
@pytest.mark.parametrize("c", [2, 3, 8])
def test_lengths_past_the_integers_of_a_double_are_exact(tokens: int, c: int) -> None:
    held = [int(get_dcp_lens(ids([tokens]), Shard(c, rank))) for rank in range(c)]
    assert held == [tokens // c + (rank < tokens % c) for rank in range(c)]
