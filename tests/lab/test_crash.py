"""The crash: what fails, what is silent and wrong, and that nothing is after the fix.

The judge is ``node_by_hand.py``, which does the same with dictionaries and nothing of kvlab.
"""

from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, raw_use_census
from kvlab.lab.crash import Code, CrashNode, CrashStudy, Regime, page_census
from tests.lab.node_by_hand import HandNode, Mark
from tests.lab.support import lines

OUTCOMES = ("silent", "straddling", "out_of_range")


@st.composite
def crashes(
    draw: st.DrawFn, regime: Regime | None, code: Code, least: int = 1, most: int = 4
) -> CrashStudy:
    """Small pools: 1 to 3 pages a request, ragged or not, also fewer positions than ranks."""
    c, page = draw(st.integers(least, most)), draw(st.integers(1, 3))
    tokens = draw(st.none() | st.integers(2, max(2, 3 * c * page)))
    each = 3 if tokens is None else -(-tokens // (c * page))
    kind: Regime = draw(st.sampled_from(["full", "low"])) if regime is None else regime
    need = 2 * each if kind == "full" else each * (-(-(2 * each + 1) * c // each) + 1)
    assume(need <= 60)
    layout = DcpLayout(c, page, need + draw(st.integers(0, 5)))
    return CrashStudy(layout, kind, code, draw(st.booleans()), tokens)


def mark(line: SimpleNamespace) -> Mark:
    """What a row of a table says that it holds."""
    return None if line.holds_request < 0 else (line.holds_request, line.holds_position)


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=30)
def test_the_census_counts_for_every_page_its_slots_below_the_row_bound(
    c: int, page: int, pages: int
) -> None:
    layout = DcpLayout(c, page, pages)
    table = page_census(layout)
    assert table["page"].tolist() == list(range(1, pages + 1))
    for line in lines(table):
        slots = range(line.first_slot, line.last_slot + 1)
        assert {slot // (c * page) for slot in slots} == {line.page}
        assert len(slots) == c * page
        below = sum(slot < (pages + 1) * page for slot in slots)
        found = "silent" if below == len(slots) else "straddling" if below else "out_of_range"
        assert line.outcome == found
    counts = Counter(table["outcome"])
    assert asdict(raw_use_census(layout)) == {name: counts[name] for name in OUTCOMES}


@given(crashes("full", "before", least=2, most=6))
@settings(max_examples=25)
def test_before_the_fix_a_full_pool_fails_on_its_first_victim_whatever_the_dcp_size(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert result.error is not None
    assert f"out of bounds for dimension 0 with size {study.layout.rows_per_rank}" in result.error
    assert (result.victim, result.failed_rank) == (study.requests - 1, 0)
    assert len(result.restored) == 0
    assert result.summary()["wrong_positions"] is None


@given(crashes("low", "before", least=2))
@settings(max_examples=30)
def test_before_the_fix_low_use_never_fails_and_leaves_the_rows_that_a_hand_count_gives(
    study: CrashStudy,
) -> None:
    lay, result = study.layout, study.run()
    node = HandNode(lay.dcp_size, lay.page_size, lay.num_pages, study.requests, study.tokens)
    node.give_up(0)
    victim = study.requests
    node.admit(victim)
    saved = node.saved_raw(victim)
    node.give_up(victim)
    if not study.same_slots:
        node.admit(2 * study.requests)
        node.give_up(min(node.slots))
    node.take(victim)
    node.restore_raw(victim, saved)
    assert (result.error, result.victim) == (None, victim)
    assert [(line.rank, mark(line)) for line in lines(result.saved)] == saved
    assert [(x.position, x.rank, mark(x)) for x in lines(result.restored)] == node.held(victim)
    lost = list(zip(result.damaged["request"], result.damaged["position"], strict=True))
    assert len(lost) == len(set(lost))
    assert set(lost) == node.damaged(victim)
    # Wrong, and no check that reads the raw rows again sees it.
    assert result.wrong() > 0
    assert result.self_consistent is True
    if study.same_slots:
        assert len(result.damaged) == 0
        assert set(result.restored["verdict"]) <= {"right", "not restored"}
    ranks = result.wrong_by_rank()
    assert ranks["wrong"].sum() == result.wrong()
    held = Counter(position % lay.dcp_size for position in range(study.tokens))
    assert dict(zip(ranks["rank"], ranks["positions"], strict=True)) == held


@given(crashes(None, "after", most=6) | crashes(None, "before", most=1))
@settings(max_examples=30)
def test_the_fix_and_one_rank_save_each_position_once_and_bring_every_row_back(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert (result.error, result.wrong(), len(result.damaged)) == (None, 0, 0)
    assert (result.self_consistent is None) == (study.code == "after")
    assert result.restored["position"].tolist() == list(range(study.tokens))
    marks = [(rid, position) for _, rid, position in result.saved.itertuples(index=False)]
    assert sorted(marks) == [(result.victim, position) for position in range(study.tokens)]


def test_every_rank_holds_wrong_rows_after_a_forced_retraction_on_eight_ranks() -> None:
    ranks = CrashStudy(DcpLayout(8, 4, 80), "low").run().wrong_by_rank()
    assert ranks["rank"].tolist() == list(range(8))
    assert (ranks["wrong"] > 0).all()


@pytest.mark.parametrize(
    ("pages", "options", "sentence"),
    [
        (9, {"regime": "half"}, "regime is full or low, code before or after: got 'half'"),
        (9, {"code": "between"}, "got 'full', 'between'"),
        (5, {}, r"the full regime needs 2 requests of 6 positions .* 6 pages: got num_pages=5"),
        (17, {"regime": "low"}, r"the low regime needs 6 requests .*18 pages: got num_pages=17"),
        (9, {"tokens_per_request": 1}, r"at least 2 cached positions: got 1"),
        (9, {"tokens_per_request": 11}, r"needs 2 requests of 11 positions .*12 pages"),
        (40, {"device": "cuda:0"}, r"device-side assert.*crash_in_child\(layout, 'cuda:0'\)"),
    ],
)
def test_a_study_that_its_pool_cannot_hold_or_that_would_end_this_process_is_refused(
    pages: int, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(StudyError, match=sentence):
        CrashStudy(DcpLayout(2, 1, pages), **options)


def test_the_smallest_pools_are_taken_and_on_cuda_what_ends_well() -> None:
    assert CrashStudy(DcpLayout(2, 1, 6)).run().error is not None
    assert CrashStudy(DcpLayout(2, 1, 18), "low").run().error is None
    layout = DcpLayout(2, 1, 40)
    CrashStudy(layout, "low", device="cuda:0")  # made, not run
    CrashStudy(layout, "full", "after", device="cuda:0")
    CrashStudy(DcpLayout(1, 1, 40), device="cuda:0")


def test_a_row_of_the_right_request_and_another_position_is_another_token() -> None:
    node = CrashNode(DcpLayout(2, 2, 8), requests=2, tokens=7)
    swapped = torch.arange(7).flip(0)
    node.cells.write(torch.full_like(swapped, 1), swapped, node.slots(1).ids)
    verdicts = node.held(1)["verdict"].tolist()
    assert verdicts == ["another token"] * 3 + ["right"] + ["another token"] * 3
    assert set(node.held(0)["verdict"]) == {"right"}
