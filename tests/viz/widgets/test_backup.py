"""Backup stepper: what the pools hold after each step, with the fix and without it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import StudyError
from kvlab.lab.backup_walk import STEPS, backup_walk
from kvlab.viz.widgets import backup_stepper
from kvlab.viz.widgets.backup import SIZES, backup_hover, backup_table

SETTING = (st.sampled_from(SIZES), st.sampled_from([1, 2]), st.integers(1, 16))


@settings(max_examples=12, deadline=None)
@given(*SETTING, st.sampled_from(["low", "full"]))
def test_with_the_fix_every_position_comes_back_and_nobody_is_hurt(
    c: int, size: int, length: int, pool: str
) -> None:
    walk = backup_walk(c, size, length, pool)
    assert [step.name for step in walk.steps] == list(STEPS)
    last = walk.steps[-1]
    assert (last.wrong, last.damaged, last.failed) == (0, 0, False)
    mine = last.cells[(last.cells["request"] == walk.victim)]
    assert sorted(mine["position"]) == list(range(length))
    assert (mine["position"] % c == mine["rank"]).all()
    host = walk.steps[1].cells.query("place == 'host'")
    assert len(host) == length and (host["request"] == walk.victim).all()


@settings(max_examples=12, deadline=None)
@given(*SETTING)
def test_without_the_fix_a_low_victim_is_lost_in_silence_and_others_with_it(
    c: int, size: int, length: int
) -> None:
    walk = backup_walk(c, size, length, "low", False)
    last = walk.steps[-1]
    if c == 1:
        assert (last.wrong, last.damaged) == (0, 0)
        return
    assert not any(step.failed for step in walk.steps)
    assert last.wrong > 0
    host = walk.steps[1].cells.query("place == 'host'")
    assert len(host) == c * length  # every rank copied a row a position
    framed = int((last.cells["verdict"] == "wrong").sum())
    assert framed == last.wrong + last.damaged


@pytest.mark.parametrize("c", [2, 4, 8])
def test_without_the_fix_a_full_pool_ends_the_process_at_the_backup(c: int) -> None:
    walk = backup_walk(c, 2, 5, "full", False)
    assert [step.failed for step in walk.steps] == [False, True, True, True, True, True]
    assert "out of bounds" in walk.steps[1].told
    assert walk.steps[4].told.startswith("Not reached. Rank 0 used slots as rows")


def test_freed_rows_hold_no_token_and_the_newcomer_takes_them() -> None:
    walk = backup_walk(4, 2, 12, "low")
    before, freed, reused = (
        walk.steps[at].cells.query("place == 'buffer'").set_index(["rank", "row"])["request"]
        for at in (0, 2, 3)
    )
    mine = before[before == walk.victim].index
    assert (freed[mine] == -1).all()
    assert (reused[mine] > walk.victim).all()


def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(StudyError, match=r"a length of at least 1 position .* got length=0"):
        backup_walk(2, 2, 0)
    with pytest.raises(StudyError, match=r"pool that is low or full: .* pool='half'"):
        backup_walk(2, 2, 3, "half")


def test_stepping_to_the_end_and_back_shows_the_same_sentences() -> None:
    panel = backup_stepper()
    there = [panel.set(step=at).text for at in range(6)]
    back = [panel.set(step=at).text for at in reversed(range(6))]
    assert there == back[::-1] and len(set(there)) == 6
    assert there[5].startswith("Step 5 of 5, restored. Of the victim's 12 positions 12 are right")


def test_every_setting_is_drawn() -> None:
    panel = backup_stepper()
    for c, size, pool, fix in itertools.product(SIZES, (1, 2), ("low", "full"), (True, False)):
        for length in (1, 16):
            panel.set(dcp_size=c, page_size=size, pool=pool, fix=fix, length=length, step=5)
            assert panel.text.startswith("Step 5 of 5, restored."), panel.text


def test_hover_boxes_say_what_the_table_has() -> None:
    values = backup_stepper().set(step=5, fix=False).values
    table = backup_table(**values)  # type: ignore[arg-type]
    said = [box.text for box in backup_hover(**values)]  # type: ignore[arg-type]
    assert sum("no token" not in text for text in said) == len(table)
    for row in table.head(30).to_dict("records"):
        words = f"Rank {row['rank']}, row {row['row']}, "
        mine = [text for text in said if text.startswith(words)]
        assert len(mine) == 1
        assert f"request {row['request']}, position {row['position']}" in mine[0]
