"""The crash: what fails, what is silent and wrong, and that nothing is after the fix.

The judge is ``node_by_hand.py``, which does the same with dictionaries and nothing of kvlab.
"""

from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, raw_use_census
from kvlab.lab.crash import Code, CrashNode, CrashResult, CrashStudy, Regime, page_census
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
    need = 2 * each
    if kind == "low":
        need = each * (-(-(2 * each + 1) * c // each) + 1)
    assume(need <= 60)
    layout = DcpLayout(c, page, need + draw(st.integers(0, 5)))
    return CrashStudy(layout, kind, code, draw(st.booleans()), tokens)


def mark(line: SimpleNamespace) -> Mark:
    """What a row of a table says that it holds."""
    return None if line.holds_request < 0 else (line.holds_request, line.holds_position)


def marks(result: CrashResult) -> list[tuple[int, Mark]]:
    """(rank, mark) of every row that was saved."""
    return [(line.rank, mark(line)) for line in lines(result.saved)]


def by_hand(study: CrashStudy) -> tuple[HandNode, int, list[tuple[int, Mark]]]:
    """The study before the fix, done by hand: the node at its end, the victim, what was saved."""
    lay = study.layout
    node = HandNode(lay.dcp_size, lay.page_size, lay.num_pages, study.requests, study.tokens)
    victim = study.requests - 1
    if study.regime == "low":
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
    return node, victim, saved


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 40))
def test_the_census_counts_for_every_page_its_slots_below_the_row_bound(
    c: int, page: int, pages: int
) -> None:
    layout = DcpLayout(c, page, pages)
    table = page_census(layout)
    assert table["page"].tolist() == list(range(1, pages + 1))
    for line in lines(table):
        slots = range(line.first_slot, line.last_slot + 1)
        assert len(slots) == c * page
        assert {slot // (c * page) for slot in slots} == {line.page}
        below = sum(slot < (pages + 1) * page for slot in slots)
        found = "silent" if below == len(slots) else "straddling" if below else "out_of_range"
        assert line.outcome == found
    counts = Counter(table["outcome"])
    assert asdict(raw_use_census(layout)) == {name: counts[name] for name in OUTCOMES}


@pytest.mark.parametrize(
    ("pages", "page", "c", "census"),
    [
        (3, 1, 2, (1, 0, 2)),
        (16, 64, 4, (3, 1, 12)),
        (128, 64, 4, (31, 1, 96)),
        (1024, 64, 8, (127, 1, 896)),
    ],
)
def test_the_census_of_the_worked_pools(
    pages: int, page: int, c: int, census: tuple[int, ...]
) -> None:
    counts = Counter(page_census(DcpLayout(c, page, pages))["outcome"])
    assert tuple(counts[name] for name in OUTCOMES) == census


@given(crashes("full", "before", least=2, most=6))
@settings(max_examples=50)
def test_before_the_fix_a_full_pool_fails_on_its_first_victim_whatever_the_dcp_size(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert result.error is not None
    assert f"out of bounds for dimension 0 with size {study.layout.rows_per_rank}" in result.error
    assert result.failed_rank == 0
    assert (result.victim, len(result.restored)) == (study.requests - 1, 0)
    assert result.summary()["wrong_positions"] is None


@given(crashes(None, "before", most=1))
@settings(max_examples=30)
def test_one_rank_never_shows_the_crash_nor_a_wrong_row(study: CrashStudy) -> None:
    result = study.run()
    assert result.error is None
    assert result.wrong() == 0
    assert len(result.damaged) == 0
    assert set(result.saved["holds_request"]) == {result.victim}


@given(crashes("low", "before", least=2))
@settings(max_examples=60)
def test_before_the_fix_low_use_never_fails_and_leaves_the_rows_that_a_hand_count_gives(
    study: CrashStudy,
) -> None:
    result = study.run()
    node, victim, saved = by_hand(study)
    assert result.error is None
    assert result.victim == victim
    assert marks(result) == saved
    held = [(x.position, x.rank, mark(x)) for x in lines(result.restored)]
    assert held == node.held(victim)
    lost = list(zip(result.damaged["request"], result.damaged["position"], strict=True))
    assert len(lost) == len(set(lost))
    assert set(lost) == node.damaged(victim)


@given(crashes("low", "before", least=2))
@settings(max_examples=40)
def test_before_the_fix_low_use_corrupts_the_victim_and_no_raw_check_sees_it(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert result.wrong() > 0
    assert result.self_consistent is True


@given(crashes("low", "before", least=2))
@settings(max_examples=40)
def test_a_saved_row_names_the_token_whose_slot_lies_in_the_raw_row(study: CrashStudy) -> None:
    lay, result = study.layout, study.run()
    c, width = lay.dcp_size, lay.widened_page_size
    slots = [page * width + i for page in result.victim_pages for i in range(width)][: study.tokens]
    each = lay.pages_for(study.tokens)
    for (rank, named), raw in zip(marks(result), slots * c, strict=True):
        page, offset = divmod(raw * c + rank, width)  # the slot that this rank keeps in row `raw`
        order, nth = divmod(page - 1, each)
        position = nth * width + offset
        if named is None:  # the row of no position: the last page of a request is ragged
            assert position >= study.tokens or order >= study.requests
        else:
            assert named == (order if order else result.victim, position)


@given(crashes("low", "before", least=2).filter(lambda study: study.same_slots))
@settings(max_examples=30)
def test_the_same_slots_look_consistent_and_harm_nobody_else_but_are_not_restored(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert result.self_consistent is True
    assert result.wrong() > 0
    assert len(result.damaged) == 0
    assert set(result.restored["verdict"]) <= {"right", "not restored"}


@given(crashes(None, "after", most=6))
@settings(max_examples=80)
def test_after_the_fix_no_position_is_wrong_and_no_other_request_is_damaged(
    study: CrashStudy,
) -> None:
    result = study.run()
    assert result.error is None
    assert result.restored["position"].tolist() == list(range(study.tokens))
    assert set(result.restored["verdict"]) == {"right"}
    assert result.wrong() == 0
    assert len(result.damaged) == 0
    # Each position is saved once, by its owner.
    assert Counter(named for _, named in marks(result)) == {
        (result.victim, position): 1 for position in range(study.tokens)
    }


@given(crashes(None, "after") | crashes("low", "before"))
@settings(max_examples=30)
def test_the_ranks_share_out_the_positions_and_the_wrong_ones(study: CrashStudy) -> None:
    result = study.run()
    ranks = result.wrong_by_rank()
    assert ranks["positions"].sum() == study.tokens
    assert ranks["wrong"].sum() == result.wrong()
    assert (ranks["wrong"] <= ranks["positions"]).all()
    c = study.layout.dcp_size
    held = Counter(position % c for position in range(study.tokens))
    assert dict(zip(ranks["rank"], ranks["positions"], strict=True)) == held


def test_every_rank_holds_wrong_rows_after_a_forced_retraction_on_eight_ranks() -> None:
    result = CrashStudy(DcpLayout(8, 4, 80), "low").run()
    ranks = result.wrong_by_rank()
    assert ranks["rank"].tolist() == list(range(8))
    assert (ranks["wrong"] > 0).all()


def test_the_summary_says_what_was_tried_and_what_happened() -> None:
    layout = DcpLayout(2, 1, 9)
    assert CrashStudy(layout).run().summary() == {
        "dcp_size": 2,
        "regime": "full",
        "code": "before",
        "same_slots": False,
        "victim": 2,
        "victim_pages": [7, 8, 9],
        "error": "index 14 is out of bounds for dimension 0 with size 10",
        "failed_rank": 0,
        "positions": 6,
        "wrong_positions": None,
        "damaged_rows": None,
        "self_consistent": None,
    }


@pytest.mark.parametrize(
    ("pages", "options", "sentence"),
    [
        (9, {"regime": "half"}, r"regime must be full or low.*got regime='half', code='before'"),
        (9, {"code": "between"}, r"code before or after: got regime='full', code='between'"),
        (5, {}, r"the full regime needs 2 requests of 6 positions .* 6 pages: got num_pages=5"),
        (17, {"regime": "low"}, r"the low regime needs 6 requests .*18 pages: got num_pages=17"),
        (9, {"tokens_per_request": 1}, r"at least 2 cached positions: got 1"),
        (9, {"tokens_per_request": 11}, r"needs 2 requests of 11 positions .*12 pages"),
        (1, {}, r"the full regime needs 2 requests of 6 positions .*, 6 pages: got num_pages=1"),
    ],
)
def test_a_study_that_its_pool_cannot_hold_is_refused(
    pages: int, options: dict[str, str | int], sentence: str
) -> None:
    with pytest.raises(StudyError, match=sentence):
        CrashStudy(DcpLayout(2, 1, pages), **options)  # type: ignore[arg-type]


def test_the_smallest_pool_of_each_regime_is_taken() -> None:
    assert CrashStudy(DcpLayout(2, 1, 6)).run().error is not None
    assert CrashStudy(DcpLayout(2, 1, 18), "low").run().error is None


def test_the_study_that_would_end_this_process_on_cuda_is_refused() -> None:
    layout = DcpLayout(2, 1, 40)
    with pytest.raises(StudyError, match=r"device-side assert.*crash_in_child\(layout, 'cuda:0'\)"):
        CrashStudy(layout, device="cuda:0")
    CrashStudy(layout, "low", device="cuda:0")  # made, not run: these three end well
    CrashStudy(layout, "full", "after", device="cuda:0")
    CrashStudy(DcpLayout(1, 1, 40), device="cuda:0")


def test_a_row_of_the_right_request_and_another_position_is_another_token() -> None:
    node = CrashNode(DcpLayout(2, 2, 8), requests=2, tokens=7, device="cpu")
    swapped = torch.arange(7).flip(0)
    node.cells.write(torch.full_like(swapped, 1), swapped, node.slots(1).ids)
    verdicts = node.held(1)["verdict"].tolist()
    assert verdicts == ["another token"] * 3 + ["right"] + ["another token"] * 3
    assert set(node.held(0)["verdict"]) == {"right"}
