"""Laws of localization without a look at the values: counts, elements, rows, and the flag."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.index import (
    Shard,
    get_dcp_lens,
    localize_fixed_shape,
    localize_masked,
    owned_elements,
    remap_dcp_local_topk_indices,
)
from kvlab.ops import Backend, CheckFlag, localize_run, remap_topk
from kvlab.ops import localize_fixed_shape as fixed_op
from kvlab.ops.inputs import checked_run_inputs, run_inputs
from tests.ops.support import TRITON, twin_can_run

BACKENDS: list[Backend] = ["torch", *(TRITON if twin_can_run() else [])]

turns = st.integers(1, 8).flatmap(
    lambda c: st.tuples(st.just(c), st.integers(0, c - 1), st.integers(1, 6))
)
starts = st.integers(0, 200) | st.integers(2**62, 2**62 + 200)


@given(turn=turns, start=starts, n=st.integers(0, 300))
def test_the_count_is_the_length_that_the_length_formula_gives(
    turn: tuple[int, int, int], start: int, n: int
) -> None:
    c, rank, interleave = turn
    wanted = get_dcp_lens(torch.tensor([n]), Shard(c, rank, interleave), torch.tensor([start]))
    assert len(Shard(c, rank, interleave).elements(n, start)) == int(wanted)


@given(turn=turns, start=starts, n=st.integers(0, 300))
def test_the_elements_are_those_whose_position_the_rank_owns(
    turn: tuple[int, int, int], start: int, n: int
) -> None:
    c, rank, interleave = turn
    positions = torch.arange(start, start + n)
    wanted = owned_elements(positions, Shard(c, rank, interleave))
    assert torch.equal(Shard(c, rank, interleave).elements(n, start), wanted)


def run(turn: tuple[int, int, int], start: int, n: int, bad: int = 0) -> torch.Tensor:
    c, rank, interleave = turn
    sizes = {
        "dcp_size": c, "dcp_rank": rank, "interleave": interleave,
        "start": start, "n": n, "bad": bad,
    }  # fmt: skip
    ids = (checked_run_inputs if bad else run_inputs)(sizes, 7, "cpu")["ids"]
    assert isinstance(ids, torch.Tensor)
    return ids


@given(turn=turns, start=st.integers(0, 2**40), n=st.integers(0, 300), checked=st.booleans())
def test_a_run_that_agrees_with_its_positions_gives_the_rows_of_the_mask(
    turn: tuple[int, int, int], start: int, n: int, checked: bool
) -> None:
    ids = run(turn, start, n)
    flag = CheckFlag("cpu") if checked else None
    c, rank, interleave = turn
    rows = localize_run(ids, Shard(c, rank, interleave), start, flag=flag)
    assert torch.equal(rows, localize_masked(ids, Shard(c, rank, interleave)))
    assert flag is None or flag.read() is None
    assert rows.numel() == 0 or rows.data_ptr() != ids.data_ptr()


@given(turn=turns, start=st.integers(0, 100), n=st.integers(1, 200), bad=st.integers(1, 4))
def test_the_flag_has_the_first_bad_id_and_bad_ids_of_the_rank_become_row_zero(
    turn: tuple[int, int, int], start: int, n: int, bad: int
) -> None:
    c, rank, interleave = turn
    ids, good = run(turn, start, n, bad), run(turn, start, n)
    end = int(good.max()) + 1
    named = [i // interleave % c for i in ids.tolist()]
    wrong = [
        not 0 <= i < end or owner != (start + at) // interleave % c
        for at, (i, owner) in enumerate(zip(ids.tolist(), named, strict=True))
    ]
    flag = CheckFlag("cpu")
    rows = localize_run(ids, Shard(c, rank, interleave), start, bounds=(0, end), flag=flag)
    assert flag.read() == (wrong.index(True) if any(wrong) else None)
    mine = [(at, int(ids[at])) for at in Shard(c, rank, interleave).elements(n, start).tolist()]
    assert rows.tolist() == [
        0 if wrong[at] else i // (c * interleave) * interleave + i % interleave for at, i in mine
    ]


def test_every_rank_sees_a_bad_id_also_of_another_rank() -> None:
    ids = torch.tensor([8, 9, 10, 15])
    for rank in range(2):
        flag = CheckFlag("cpu")
        localize_run(ids, Shard(2, rank), bounds=(4, 15), flag=flag)
        assert flag.read() == 3


def test_a_flag_keeps_the_lowest_of_several_ops_until_it_is_cleared() -> None:
    flag = CheckFlag("cpu")
    assert flag.read() is None
    localize_run(torch.tensor([0, 1, -1, 3]), Shard(2, 0), flag=flag)
    localize_run(torch.tensor([0, 2]), Shard(2, 0), flag=flag)
    localize_run(torch.tensor([0, 1, 2, -3]), Shard(2, 0), flag=flag)
    assert flag.read() == 1
    flag.clear()
    assert flag.read() is None


@pytest.mark.parametrize("start", [0, 3])
def test_ids_of_32_bits_are_widened_before_any_product(start: int) -> None:
    ids = torch.arange(start, start + 9, dtype=torch.int32)
    rows = localize_run(ids, Shard(3, 1), start)
    assert rows.dtype == torch.int64
    assert torch.equal(rows, localize_masked(ids, Shard(3, 1)))


def test_fixed_shapes_and_lists_are_what_the_index_functions_give() -> None:
    ids = torch.tensor([[7, -1, 4, 5], [0, 9, 2, 12]])
    assert torch.equal(remap_topk(ids, Shard(3, 1)), remap_dcp_local_topk_indices(ids, Shard(3, 1)))
    flat = ids.flatten()
    assert torch.equal(
        fixed_op(flat, Shard(3, 1, 2), 0), localize_fixed_shape(flat, Shard(3, 1, 2), hole=0)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("c", "interleave"), [(8, 2**29), (4, 2**31 - 1), (2, 2**40)])
def test_a_turn_longer_than_32_bits_is_localized(
    backend: Backend, checked: bool, c: int, interleave: int
) -> None:
    rank = c - 1
    start = rank * interleave
    ids = torch.arange(start, start + 5) + 3 * c * interleave
    flag = CheckFlag("cpu") if checked else None
    rows = localize_run(ids, Shard(c, rank, interleave), start, flag=flag, backend=backend)
    assert rows.tolist() == [3 * interleave + i for i in range(5)]
    assert flag is None or flag.read() is None


@given(
    turn=turns,
    start=st.integers(0, 200),
    n=st.integers(0, 300),
    broken=st.lists(st.tuples(st.integers(0, 299), st.integers(-5, 5)), max_size=2),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_a_checked_run_on_the_host_is_what_a_look_at_each_id_gives(
    turn: tuple[int, int, int],
    start: int,
    n: int,
    broken: list[tuple[int, int]],
    cut: tuple[int, int],
) -> None:
    c, rank, interleave = turn
    ids = run(turn, start, n).clone()
    for at, by in broken:
        if at < n:
            ids[at] += by
    listed = ids.tolist()
    low, end = max(0, min(listed, default=0) + cut[0]), max(listed, default=0) + 2 - cut[1]
    end = max(low, end)
    flag = CheckFlag("cpu")
    rows = localize_run(ids, Shard(c, rank, interleave), start, bounds=(low, end), flag=flag)
    wrong = [
        not low <= x < end or x // interleave % c != (start + i) // interleave % c
        for i, x in enumerate(listed)
    ]
    assert flag.read() == (wrong.index(True) if True in wrong else None)
    mine = Shard(c, rank, interleave).elements(n, start).tolist()
    want = [
        0 if wrong[i] else listed[i] // (c * interleave) * interleave + listed[i] % interleave
        for i in mine
    ]
    assert rows.tolist() == want
    assert not n or rows.data_ptr() != ids.data_ptr()


def test_a_right_run_on_the_host_is_not_looked_for_its_first_bad_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(flag: CheckFlag, bad: torch.Tensor) -> None:
        raise AssertionError("the long look was taken")

    monkeypatch.setattr(CheckFlag, "lower", looked)
    for c, interleave in ((1, 1), (3, 1), (8, 1), (4, 16)):
        ids = torch.arange(c * interleave, 5 * c * interleave)
        flag = CheckFlag("cpu")
        localize_run(ids, Shard(c, 0, interleave), 0, bounds=(1, 10000), flag=flag, backend="torch")
        with pytest.raises(AssertionError, match="long look"):
            localize_run(
                ids, Shard(c, 0, interleave), 0, bounds=(1, len(ids)), flag=flag, backend="torch"
            )
