"""Rows of the retraction study are kept under what decides them, and are not believed unseen."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.engine import simulate
from kvlab.engine.workload import (
    Workload,
    generate_closed_loop,
    generate_open_loop,
)
from kvlab.lab import retraction
from tests.lab.support import LENGTHS, SMALL, pages, study


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The DCP size of every run of the scheduler, in order."""
    seen: list[int] = []

    def counted(workload: Workload, config: Any) -> Any:
        seen.append(config.layout.dcp_size)
        return simulate(workload, config)

    monkeypatch.setattr(retraction, "simulate", counted)
    return seen


def test_a_run_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def stopped(workload: Workload, config: Any) -> Any:
        if len(seen) == 4:
            raise KeyboardInterrupt
        seen.append(config.layout.dcp_size)
        return simulate(workload, config)

    monkeypatch.setattr(retraction, "simulate", stopped)
    with pytest.raises(KeyboardInterrupt):
        study().run(jobs=1, cache=tmp_path)
    assert len(list(tmp_path.glob("*.kept"))) == 4
    seen[:] = [0, 0]
    table = study().run(jobs=1, cache=tmp_path)
    assert seen == [0, 0, 2, 3]
    pd.testing.assert_frame_equal(table, study(workload=SMALL).run(jobs=1, cache=tmp_path))


def test_whatever_decides_a_row_is_part_of_its_key(tmp_path: Path, simulated: list[int]) -> None:
    made = study(dcp_sizes=(2,), budgets_gib=(pages(200),))
    changes: list[dict[str, Any]] = [
        {},
        {"workload": generate_closed_loop(40, LENGTHS, seed=2)},
        {"workload": generate_open_loop(40, 10.0, LENGTHS, seed=1)},
        {"model": "DeepSeek-V2-Lite"},
        {"dtype": "fp32"},
        {"page_size": 2},
        {"concurrency": 11},
        {"concurrency": None},
        {"restore": "recompute"},
        {"host_gib": 0.0},
        {"host_full": "recompute"},
        {"reserved_decode_tokens": 3},
        {"step_time_s": 0.5},
        {"force_retract_interval": 3},
    ]
    for change in changes:
        replace(made, **change).run(jobs=1, cache=tmp_path)
    assert len(simulated) == len(list(tmp_path.glob("*.kept"))) == len(changes)


def test_the_name_of_a_workload_and_the_other_rows_are_not_part_of_the_key(
    tmp_path: Path, simulated: list[int]
) -> None:
    study().run(jobs=1, cache=tmp_path)
    renamed = replace(SMALL, name="renamed", source="elsewhere")
    study(workload=renamed, dcp_sizes=(3, 1), budgets_gib=(pages(45),)).run(jobs=1, cache=tmp_path)
    assert len(simulated) == 6
