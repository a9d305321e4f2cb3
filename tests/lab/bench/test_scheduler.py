"""The scheduler's rows: two schedulers that agree, a sweep, and where its trace lies."""

from pathlib import Path

import pytest

from kvlab.engine.workload import generate_closed_loop, save_csv
from kvlab.errors import StudyError
from kvlab.lab.bench import scheduler
from tests.lab.bench.support import FEW_REQUESTS, require_whole


def test_twins_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "simulate", lambda workload, node: None)
    with pytest.raises(StudyError, match="the step and the event scheduler differ on 8 requests"):
        scheduler.twin_row(FEW_REQUESTS)


def test_the_sweep_takes_the_trace_of_the_named_folder_or_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_TRACES", str(tmp_path))
    assert scheduler.find_trace() is None
    assert scheduler.sweep_study(FEW_REQUESTS, None).workload.name == "default"
    save_csv(generate_closed_loop(30, seed=1, name="mine"), tmp_path / scheduler.TRACE)
    study = scheduler.sweep_study(FEW_REQUESTS, scheduler.find_trace())
    assert (study.workload.name, len(study.workload), len(study.points())) == ("mine", 20, 20)


def test_growth_twin_and_sweep_are_whole_rows() -> None:
    require_whole(scheduler.growth_rows(FEW_REQUESTS))
    require_whole([scheduler.twin_row(FEW_REQUESTS), scheduler.sweep_row(FEW_REQUESTS, None)])
