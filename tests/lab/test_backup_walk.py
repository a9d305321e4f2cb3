"""The steps of a backup: what every row of every rank holds, and where it went."""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.backup_walk import FOUR_STEPS, STEPS, BackupWalk, backup_walk, walk_layout

LAYOUTS = st.integers(1, 3).flatmap(
    lambda page: st.builds(
        DcpLayout, st.integers(1, 5), st.just(page), st.just(30), st.sampled_from([1, page])
    )
)
WALKS = st.builds(walk_layout, LAYOUTS, st.integers(1, 8), st.integers(2, 3))


@given(WALKS)
@settings(max_examples=12)
def test_every_position_is_held_once_comes_back_to_its_owner_and_no_other_request_changes(
    walk: BackupWalk,
) -> None:
    layout, every = walk.layout, list(range(len(walk.old)))
    cells: Any = walk.table()
    for step, place in zip(FOUR_STEPS.values(), ("buffer", "host", "host", "buffer"), strict=True):
        mine = cells[(cells["step"] == step) & (cells["request"] == walk.victim)]
        assert set(mine["place"]) == {place}
        assert sorted(mine["position"]) == every
    assert [step.name for step in walk.steps] == list(STEPS)
    assert (walk.steps[-1].wrong, walk.steps[-1].damaged) == (0, 0)
    assert walk.new is not None
    moved: Any = walk.moved()
    for line in mine.itertuples():
        slot = walk.new.ids.tolist()[line.position]
        there = moved.loc[line.position, ["new_owner", "new_row", "new_slot"]].tolist()
        assert [line.rank, line.row, slot] == there
        assert (line.rank, line.row) == (layout.owner(slot), layout.row(slot))
    assert moved["old_owner"].tolist() == moved["new_owner"].tolist()
    running = cells.query("place == 'buffer' and request >= 0").groupby(["step", "request"])
    assert (running["position"].nunique() == len(walk.old)).all()
    held = [{r for s, r in running.groups if s == step} for step in FOUR_STEPS.values()]
    before, freed, reused, restored = held
    assert freed == before - {walk.victim}
    assert len(reused - freed) == 1
    assert restored == reused - {0} | {walk.victim}


def test_the_worked_example_is_as_told() -> None:
    walk = walk_layout(DcpLayout(2, 2, 9), 3)
    assert walk.old.ids.tolist() == [12, 13, 14]
    assert walk.copies["rows"].tolist() == [2, 1]
    held = walk.steps[-1].cells.query("request == 2")
    want = pd.DataFrame({"rank": [0, 0, 1], "row": [2, 3, 2], "position": [0, 2, 1]})
    assert held[["rank", "row", "position"]].reset_index(drop=True).equals(want)


def test_what_no_walk_can_take_is_refused() -> None:
    with pytest.raises(StudyError, match="the pool of 2 pages has no room for another request"):
        walk_layout(DcpLayout(2, 2, 2), 4)
    with pytest.raises(StudyError, match=r"a step lies in \[0, 6\): got 6"):
        backup_walk(2, 2, 3).at(6)
    with pytest.raises(StudyError, match=r"at least 1 position and a pool .* got 0, 'low'"):
        backup_walk(2, 2, 0)
