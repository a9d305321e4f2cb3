"""The rules of a decode node as tables and laws, and the texts of a configuration's errors."""

import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine import (
    CountingNode,
    FingerprintCells,
    NewTokenRatio,
    NodeConfig,
    StepNode,
    victim_key,
)
from kvlab.engine.policy import (
    allocatable,
    need_single,
    paged,
    ratio_budget,
    required_by_ratio,
    required_to_admit,
    required_to_resume,
)
from kvlab.engine.workload import Workload
from kvlab.errors import StudyError
from kvlab.index import DcpLayout

W8 = NodeConfig(DcpLayout(2, 4, 10), reserved_decode_tokens=5, clip_max_new_tokens=20)
PLAIN = NodeConfig(DcpLayout(1, 1, 1))

# Pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "whole"), [(0, 0), (1, 8), (8, 8), (9, 16), (16, 16)])
def test_tokens_are_rounded_up_to_whole_widened_pages(tokens: int, whole: int) -> None:
    assert paged(tokens, W8.layout) == whole


# Who is retracted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((3, 5, 1), (4, 5, 2)),  # fewer generated
        ((3, 9, 1), (3, 5, 2)),  # longer prompt
        ((3, 5, 2), (3, 5, 1)),  # joined later
        ((3, 1, 1), (4, 9, 2)),  # what was generated counts before the prompt
        ((3, 6, 1), (3, 5, 2)),  # the prompt counts before the order of joining
    ],
)
def test_victims_go_by_generated_then_prompt_then_joining(
    first: tuple[int, int, int], then: tuple[int, int, int]
) -> None:
    assert victim_key(*first) < victim_key(*then)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1))
def test_victims_go_as_upstream_pops_them_from_a_stable_descending_sort(
    batch: list[tuple[int, int]],
) -> None:
    order = sorted(range(len(batch)), key=lambda i: (batch[i][0], -batch[i][1]), reverse=True)
    popped = order[::-1]
    ours = sorted(range(len(batch)), key=lambda i: victim_key(*batch[i], i))
    assert ours == popped


# Budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("available", "running", "single", "queued", "budget"),
    [
        (100, 0, 0, 0, 100),
        (100, 3, 0, 0, 85),  # a reserve of 5 for each running request
        (100, 3, 40, 0, 60),  # ... or what the largest lacks, whichever is more
        (100, 3, -7, 0, 85),
        (100, 3, 40, 70, -10),  # and what the retracted are owed
    ],
)
def test_what_may_be_handed_out(
    available: int, running: int, single: int, queued: int, budget: int
) -> None:
    assert allocatable(available, running, W8, single, queued) == budget


@pytest.mark.parametrize(
    ("largest", "retractable", "need"), [(None, 0, 0), (90, 30, 60), (90, 120, -30)]
)
def test_the_largest_lacks_what_the_others_could_not_give_it(
    largest: int | None, retractable: int, need: int
) -> None:
    assert need_single(largest, retractable) == need


def test_to_resume_takes_whole_pages_and_the_reserve() -> None:
    assert [required_to_resume(kv, W8) for kv in (1, 8, 9)] == [13, 13, 21]


@pytest.mark.parametrize(
    ("fill", "still", "retractable", "need", "charge"),
    [
        (9, 4, 0, 21, 21),  # pages and reserve: 16 + 5
        (9, 15, 0, 24, 21),  # its whole output: 9 + 15
        (9, 900, 0, 29, 21),  # ... which is clipped at 20
        (9, 900, 6, 23, 21),  # ... less what could be retracted
        (9, 900, 60, 21, 21),
        (9, 0, 0, 21, 21),
    ],
)
def test_to_enter_takes_room_to_finish_and_is_charged_for_pages_and_reserve(
    fill: int, still: int, retractable: int, need: int, charge: int
) -> None:
    assert required_to_admit(fill, still, retractable, W8) == (need, charge)


def test_the_ratio_rule_asks_for_pages_and_the_clipped_output() -> None:
    assert [required_by_ratio(9, still, W8) for still in (0, 7, 900)] == [16, 23, 36]
    assert ratio_budget(100, 40, 0.5) == 80.0


# The new-token ratio ---------------------------------------------------------------------------


def test_the_ratio_decays_from_0_7_to_its_floor_in_600_forwards() -> None:
    ratio = NewTokenRatio(0.7)
    assert ratio.value(PLAIN) == 0.7
    assert ratio.after(300).value(PLAIN) == pytest.approx(0.399)
    assert ratio.after(600).value(PLAIN) == pytest.approx(0.098)
    assert ratio.after(10_000).value(PLAIN) == 0.098


@given(st.floats(0, 1), st.integers(0, 900), st.integers(0, 900))
def test_jumping_decays_the_ratio_as_stepping_does(base: float, first: int, then: int) -> None:
    ratio = NewTokenRatio(base)
    assert ratio.after(first).after(then) == ratio.after(first + then)
    assert ratio.after(first + then).value(PLAIN) <= ratio.after(first).value(PLAIN)
    assert PLAIN.min_new_token_ratio <= ratio.after(first).value(PLAIN) <= max(base, 0.098)


@pytest.mark.parametrize(
    ("survivors", "base"),
    [
        ([(30, 99)], 50 / 100),  # (30 + 20) / (99 + 1)
        ([(30, 99), (10, 100)], 80 / 200),
        ([(90, 99)], 1.0),
        ([], 0.0),
    ],
)
def test_a_retraction_sets_the_ratio_to_what_the_survivors_have_of_what_they_asked(
    survivors: list[tuple[int, int]], base: float
) -> None:
    ratio = NewTokenRatio.after_retraction(iter(survivors), PLAIN)
    assert ratio == NewTokenRatio(base)
    assert ratio.value(PLAIN) == max(base, 0.098)


# Configuration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked_for", "output", "asked"), [(None, 9, 9), (4, 9, 4), (99, 9, 99)])
def test_clients_ask_for_what_they_get_unless_told_otherwise(
    asked_for: int | None, output: int, asked: int
) -> None:
    assert NodeConfig(W8.layout, max_new_tokens=asked_for).asked(output) == asked


@given(st.floats(0, 1e6), st.sampled_from([0.001, 0.025, 0.5, 3.0]))
def test_a_request_is_seen_in_the_first_step_that_is_not_before_it(
    arrival_s: float, step_time_s: float
) -> None:
    step = NodeConfig(W8.layout, step_time_s=step_time_s).arrival_step(arrival_s)
    assert step == math.ceil(Fraction(arrival_s) / Fraction(step_time_s))


@pytest.mark.parametrize(
    ("arrival_s", "step_time_s"), [(1e308, 0.025), (5.0, 1e-320), (2.0**53, 1.0), (math.inf, 1.0)]
)
def test_an_arrival_falls_on_a_step_that_a_float_can_count(
    arrival_s: float, step_time_s: float
) -> None:
    config = NodeConfig(W8.layout, step_time_s=step_time_s)
    got = re.escape(f"got arrival_s={arrival_s!r} of request 1 at step_time_s={step_time_s!r}; ")
    with pytest.raises(StudyError, match=rf"^an arrival falls on a step below 2\*\*53: {got}count"):
        config.arrival_step(arrival_s, 1)
    if arrival_s < math.inf:
        workload = Workload.from_arrays("late", [0.0, arrival_s], [1, 1], [2, 2], "by hand")
        for node in (CountingNode(config), StepNode(config)):
            with pytest.raises(StudyError, match=got):
                node.run(workload)
    assert NodeConfig(W8.layout, step_time_s=1.0).arrival_step(2.0**53 - 1) == 2**53 - 1


LEAST = {
    "concurrency": 1,
    "max_running": 1,
    "reserved_decode_tokens": 0,
    "clip_max_new_tokens": 1,
    "max_new_tokens": 1,
    "force_retract_interval": 1,
    "host_capacity_tokens": 0,
    "token_bytes": 1,
    "ratio_decay_steps": 1,
    "retract_decode_steps": 0,
}
RATIOS = "ratios must satisfy 0 < min <= initial <= 1: got min_new_token_ratio="
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: low - 1}, f"^{name} must be an int of at least {low}: g")
        for name, low in LEAST.items()
    ),
    *(({"token_bytes": bad}, "^token_bytes must be an int") for bad in (True, 2.0, "3", None)),
    ({"layout": (2, 4, 10)}, "^layout must be a DcpLayout: got tuple"),
    *(({"step_time_s": bad}, "^step_time_s must be a finite") for bad in (0.0, math.inf, math.nan)),
    *(({"min_new_token_ratio": bad}, RATIOS) for bad in (0.0, 0.8, math.nan)),
    ({"initial_new_token_ratio": 1.1}, RATIOS),
    ({"restore": "swap"}, "^restore must be one of backup, recompute: got 'swap'$"),
    ({"host_full": "swap"}, "^host_full must be one of abort, recompute: got 'swap'$"),
    ({"admission": "swap"}, "^admission must be one of reserved, new_token_ratio: got 'swap'$"),
]


@pytest.mark.parametrize(("rules", "text"), REFUSED)
def test_a_configuration_that_cannot_be_run_is_refused(rules: dict[str, Any], text: str) -> None:
    with pytest.raises(StudyError, match=text):
        NodeConfig(**{"layout": W8.layout, **rules})


def test_counts_at_their_least_are_taken_and_some_may_be_none() -> None:
    least: dict[str, Any] = LEAST
    assert NodeConfig(W8.layout, **least).token_bytes == 1
    none: dict[str, Any] = dict.fromkeys(
        ("concurrency", "max_running", "max_new_tokens", "force_retract_interval"), None
    )
    assert NodeConfig(W8.layout, **none) == NodeConfig(W8.layout)


def test_a_node_and_its_cells_share_one_layout() -> None:
    cells = FingerprintCells(DcpLayout(2, 4, 11))
    with pytest.raises(StudyError, match=r"share one layout: the node has .*num_pages=10.*=11"):
        StepNode(W8, cells)


@pytest.mark.parametrize(
    ("bound", "fits"), [(None, True), (20, True), (12, True), (11, False), (0, False)]
)
def test_a_backup_fits_the_host_up_to_its_last_token(bound: int | None, fits: bool) -> None:
    assert NodeConfig(W8.layout, host_capacity_tokens=bound).host_has_room(5, 7) == fits
