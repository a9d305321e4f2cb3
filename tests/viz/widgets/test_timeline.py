"""Retraction time-line: the run is that of the node that steps, and the numbers are its events'."""

import pytest

from kvlab.engine import NodeConfig, StepNode
from kvlab.errors import StudyError
from kvlab.lab.timeline import RESERVE, node_walk, requests
from kvlab.viz.widgets import retraction_timeline, retraction_timeline_figure
from kvlab.viz.widgets.timeline import CAPACITIES, SIZES, timeline_hover, timeline_table


@pytest.mark.parametrize("restore", ["backup", "recompute"])
@pytest.mark.parametrize(("c", "capacity"), [(1, 96), (2, 64), (4, 32), (8, 32)])
def test_the_run_is_that_of_the_node_that_steps_over_real_pools(
    c: int, capacity: int, restore: str
) -> None:
    walk = node_walk(c, capacity, restore)
    config = NodeConfig(
        walk.layout,
        restore=restore,  # type: ignore[arg-type]
        admission="reserved" if restore == "backup" else "new_token_ratio",
        reserved_decode_tokens=RESERVE,
    )
    assert walk.result == StepNode(config, check_every_step=True).run(requests(), record=True)


@pytest.mark.parametrize("restore", ["backup", "recompute"])
def test_the_numbers_of_a_step_are_counted_from_the_events(restore: str) -> None:
    walk = node_walk(2, 64, restore)
    state: dict[int, str] = {}
    words = {"arrive": "waiting", "admit": "running", "resume": "running", "retract": "retracted"}
    for step in range(0, walk.steps, 7):
        state = {}
        for event in walk.events:
            last = event.step < step or (event.step == step and event.kind in words)
            if last and event.kind in words:
                state[event.rid] = words[event.kind]
                if restore == "recompute" and event.kind == "retract":
                    state[event.rid] = "waiting"
            elif last:
                state.pop(event.rid, None)
        now = walk.at(step)
        for name in ("running", "retracted", "waiting"):
            assert now[name] == sorted(rid for rid, kind in state.items() if kind == name)


def test_a_step_past_the_end_is_refused() -> None:
    walk = node_walk(8, 64)
    with pytest.raises(StudyError, match=rf"lies in \[0, {walk.steps}\): got {walk.steps}"):
        walk.at(walk.steps)


@pytest.mark.parametrize(("capacity", "restore"), [(0, "backup"), (65, "backup"), (64, "tape")])
def test_what_is_no_node_is_refused(capacity: int, restore: str) -> None:
    with pytest.raises(StudyError, match="a node has whole pages of 4 rows, at least one, and"):
        node_walk(2, capacity, restore)


@pytest.mark.parametrize("restore", ["backup", "recompute"])
def test_every_setting_is_drawn_or_refused_in_words(restore: str) -> None:
    panel = retraction_timeline()
    refused = 0
    for c in SIZES:
        for capacity in CAPACITIES:
            panel.set(dcp_size=c, capacity=capacity, restore=restore)
            if panel.text.startswith("Not drawn"):
                refused += 1
                assert "all 6 requests were aborted; take more rows or more ranks" in panel.text
            else:
                end = node_walk(c, capacity, restore).steps - 1
                assert panel.set(step=end).text.startswith(f"Step {end}: ")
    assert 0 < refused < 5


def test_more_ranks_hold_more_and_retract_less() -> None:
    counts = [node_walk(c, 64).result.counters.retracted_requests for c in (2, 4, 8)]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0 == counts[-1]


def test_a_hover_box_is_a_stay_of_the_table() -> None:
    values = retraction_timeline().values
    table = timeline_table(**values)  # type: ignore[arg-type]
    boxes = timeline_hover(**values)  # type: ignore[arg-type]
    lasting = table[table["end"] > table["begin"]]
    assert len(boxes) == len(lasting)
    for box, stay in zip(boxes, lasting.to_dict("records"), strict=True):
        assert box.text.startswith(f"Request {stay['rid']}, ")
        assert f"steps {stay['begin']} to {stay['end'] - 1}" in box.text


def test_the_twin_refuses_a_pool_that_nobody_fits() -> None:
    with pytest.raises(StudyError, match="a time-line needs a request that fits the pool"):
        retraction_timeline_figure(dcp_size=1, capacity=32)
