"""The steps of a backup: what every row of every rank holds, and where it went."""

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


def positions(walk: BackupWalk, step: str, place: str) -> list[int]:
    """Positions of the victim that are held there, over all ranks."""
    cells = walk.table()
    here = cells[(cells["step"] == step) & (cells["place"] == place)]
    return sorted(here.loc[here["request"] == walk.victim, "position"])


@given(WALKS)
@settings(max_examples=25)
def test_the_ranks_hold_every_cached_position_once_in_the_pool_or_on_the_host(
    walk: BackupWalk,
) -> None:
    every = list(range(len(walk.old)))
    none: list[int] = []
    held = ((every, none), (none, every), (none, every), (every, none))
    for step, (buffer, host) in zip(FOUR_STEPS.values(), held, strict=True):
        assert positions(walk, step, "buffer") == buffer
        assert positions(walk, step, "host") == host
    assert [step.name for step in walk.steps] == list(STEPS)
    assert (walk.steps[-1].wrong, walk.steps[-1].damaged) == (0, 0)


@given(WALKS)
@settings(max_examples=25)
def test_a_restored_position_lies_in_the_row_of_its_new_slot_on_its_old_owner(
    walk: BackupWalk,
) -> None:
    cells, moved, layout = walk.table(), walk.moved(), walk.layout
    held = cells[(cells["step"] == STEPS[-1]) & (cells["request"] == walk.victim)]
    assert walk.new is not None
    assert len(held) == len(walk.new) == len(moved)
    for rank, row, position in zip(held["rank"], held["row"], held["position"], strict=True):
        slot = int(walk.new.ids[int(position)])
        assert (rank, row) == (layout.owner(slot), layout.row(slot))
        line = moved.loc[int(position)]
        assert (rank, row, slot) == (line["new_owner"], line["new_row"], line["new_slot"])
    assert moved["old_owner"].tolist() == moved["new_owner"].tolist()


@given(WALKS)
@settings(max_examples=25)
def test_no_other_request_changes_but_by_its_own_arrival_or_end(walk: BackupWalk) -> None:
    cells = walk.table().query("place == 'buffer' and request >= 0")
    counts = {
        step: cells[cells["step"] == step].groupby("request")["position"].nunique().to_dict()
        for step in FOUR_STEPS.values()
    }
    before, freed, reused, restored = (set(count) for count in counts.values())
    assert all(set(count.values()) == {len(walk.old)} for count in counts.values())
    assert freed == before - {walk.victim}
    assert len(reused - freed) == 1
    assert restored == reused - {0} | {walk.victim}


def test_the_worked_example_is_as_told() -> None:
    walk = walk_layout(DcpLayout(2, 2, 9), 3)
    assert walk.old.ids.tolist() == [12, 13, 14]
    assert walk.copies["rows"].tolist() == [2, 1]
    cells = walk.table()
    held = cells[(cells["step"] == "restored") & (cells["request"] == 2)]
    want = pd.DataFrame({"rank": [0, 0, 1], "row": [2, 3, 2], "position": [0, 2, 1]})
    assert held[["rank", "row", "position"]].reset_index(drop=True).equals(want)


def test_what_no_walk_can_take_is_refused() -> None:
    with pytest.raises(StudyError, match="the pool of 2 pages has no room for another request"):
        walk_layout(DcpLayout(2, 2, 2), 4)
    with pytest.raises(StudyError, match=r"whole number in \[0, 6\): got 6"):
        backup_walk(2, 2, 3).at(6)
