"""The study as a whole: its rows, what a kill or a damaged file changes, and files read back."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.drift import (
    DriftStudy,
    Point,
    Prompts,
    Study,
    read_study,
    read_token_drift,
    write_study,
)
from kvlab.lab.drift import study as study_module
from kvlab.lab.drift.results import TABLES
from kvlab.lab.drift.study import model_digest, weights_digest
from kvlab.lab.keep import Values
from kvlab.memory.published import data_path
from kvlab.viz.drift import origin_of
from scripts.token_drift import token_drift


@pytest.fixture(scope="module")
def planned(checkpoint: Path, requests_: Prompts) -> DriftStudy:
    return DriftStudy(
        checkpoint, requests_, (1, 2), ("forced_before_fix", "defect:nan_padding"), ("float32",)
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def done(planned: DriftStudy, kept: Path) -> Study:
    return planned.run(jobs=1, cache=kept)


def equal(a: Study, b: Study) -> bool:
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(a, name), getattr(b, name), check_exact=True)
    return True


def test_what_a_condition_is_compared_with_is_taken_along(planned: DriftStudy) -> None:
    assert list(dict.fromkeys(point.known.name for point in planned.points())) == [
        "no_retraction", "forced_fixed", "forced_before_fix", "defect:nan_padding",
    ]  # fmt: skip
    both = replace(planned, conditions=("defect:scales_lost",), dtypes=("float32", "fp8"))
    rows = {(point.known.name, point.dtype) for point in both.points()}
    assert ("defect:scales_lost", "fp8") in rows and ("forced_fixed", "fp8") in rows
    assert ("defect:scales_lost", "float32") not in rows


def test_conditions_that_are_one_run_are_run_once(planned: DriftStudy, kept: Path) -> None:
    twice = replace(planned, conditions=("forced_before_fix", "defect:widened_as_rows"))
    once = replace(planned, conditions=("forced_before_fix",))
    assert len(twice.points()) == len(once.points()) + 2
    calls: list[tuple[int, int]] = []
    for study in (once, twice):
        study.run(jobs=1, cache=kept, progress=lambda *call: calls.append(call))
    assert {total for _, total in calls} == {2 + 2 * len(once.points())}


def test_tables_add_up_and_floor_zero_and_drift_are_where_they_belong(done: Study) -> None:
    for name, columns in TABLES.items():
        assert tuple(getattr(done, name).columns) == columns
    assert len(done.summary) == 4 * 2 and len(done.requests) == 4 * 2 * 6
    assert done.origin["timeline"] == {
        "condition": "forced_before_fix", "dcp_size": 2, "dtype": "float32",
    }  # fmt: skip
    key = ["condition", "dcp_size"]
    table: Any = done.summary.set_index(key)
    parts: Any = done.requests.groupby(key, sort=False)
    assert (table["retractions"] == parts["retractions"].sum()).all()
    assert (table["nan_tokens"] == parts["nan_tokens"].sum()).all()
    assert (table["collateral_requests"] == parts["collateral"].sum()).all()
    assert (table["restored_requests"] == parts["restored_at"].count()).all()
    assert (table["diverged_requests"] == parts["first_divergence"].count()).all()
    assert table["max_abs_dlogprob"].equals(parts["max_abs_dlogprob"].max())
    calm = table.loc["no_retraction"]
    assert (calm["floor"] == calm["max_abs_dlogprob"].max()).all()
    assert (calm["retractions"] == 0).all() and (calm["restores"] == 0).all()
    assert table.loc[("forced_fixed", 2), "restores_different"] == 0
    assert table.loc[("forced_fixed", 2), "restores"] > 0
    assert table.loc[("forced_before_fix", 1), "max_from_fixed"] == 0
    assert table.loc[("forced_before_fix", 2), "max_from_fixed"] > 1e-3
    assert (table.loc["defect:nan_padding", "nan_tokens"] > 0).all()
    places: Any = done.positions[done.positions["axis"] == "position"].groupby(key, sort=False)
    assert (places["tokens"].sum() == table["tokens"] - table["nan_tokens"]).all()
    assert places["max"].max().equals(table["max_abs_dlogprob"])


def test_tokens_of_the_timeline_are_those_of_its_run(done: Study) -> None:
    mine = done.requests.query("condition == 'forced_before_fix' and dcp_size == 2")
    by_rid: Any = done.tokens.groupby("rid")
    assert by_rid["abs_dlogprob"].max().tolist() == mine["max_abs_dlogprob"].tolist()
    ends: Any = done.events.query("event == 'finish'").set_index("rid")["step"]
    for (rid, part), back in zip(by_rid, mine["restored_at"], strict=True):
        assert part["step"].notna().all() and part["step"].is_monotonic_increasing
        assert part["restored"].tolist() == [bool(at >= back) for at in part["position"]]
        assert part["step"].iloc[-1] == ends[rid]


def test_the_table_of_all_tokens_is_of_the_same_runs(
    planned: DriftStudy, done: Study, kept: Path, tmp_path: Path
) -> None:
    table = token_drift(planned, kept, 6)
    table.to_csv(tmp_path / "token_drift.csv", index=False)
    found = read_token_drift(tmp_path)
    most = [np.nanmax([*drift, -1.0]) for drift in found["abs_dlogprob"]]
    want = done.requests["max_abs_dlogprob"].fillna(-1.0)
    np.testing.assert_allclose(most, want, rtol=0.006, atol=1e-12)
    ran = done.requests["restored_at"].notna()
    assert found["restored_at"].map(bool).tolist() == ran.tolist()


def test_a_study_that_is_killed_goes_on_where_it_stopped_and_ends_the_same(
    planned: DriftStudy, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(planned, conditions=("no_retraction",), dcp_sizes=(2,))

    def kill(finished: int, total: int) -> None:
        if finished == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.run(jobs=1, cache=tmp_path, progress=kill)
    assert len(list(tmp_path.glob("*.kept"))) == 3
    made: list[Point] = []

    def count(study: DriftStudy, view: str, point: Point, reference: Values | None) -> Values:
        made.append(point)
        return make(study, view, point, reference)

    make = study_module._make
    monkeypatch.setattr(study_module, "_make", count)
    calls: list[tuple[int, int]] = []
    again = small.run(jobs=1, cache=tmp_path, progress=lambda a, b: calls.append((a, b)))
    assert (len(made), calls[-1]) == (1, (4, 4))
    assert equal(again, small.run(jobs=1, cache=kept))


def test_another_seed_keeps_the_forced_view(planned: DriftStudy, done: Study, kept: Path) -> None:
    small = replace(planned, conditions=("no_retraction",), dcp_sizes=(2,), seed=5)
    found = small.run(jobs=1, cache=kept)
    assert found.origin["seed"] == 5
    mine = done.summary.query("condition == 'no_retraction' and dcp_size == 2")
    assert found.summary["max_abs_dlogprob"].tolist() == mine["max_abs_dlogprob"].tolist()


def test_a_study_is_read_back_as_it_was_written(done: Study, tmp_path: Path) -> None:
    write_study(done, tmp_path)
    back = read_study(tmp_path)
    for name in TABLES:
        written, read = getattr(done, name), getattr(back, name)
        pd.testing.assert_frame_equal(read, written, check_dtype=False, check_exact=True)
    assert back.origin == json.loads(json.dumps(done.origin))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"dcp_sizes": ()}, r"dcp_sizes are at least one of 1 \.\. 256, each once: got \(\)"),
        ({"dcp_sizes": (1, 1)}, r"each once: got \(1, 1\)"),
        ({"dcp_sizes": (2, 0)}, r"got \(2, 0\)"),
        ({"conditions": ("fixed",)}, "conditions are at least one of no_retraction, .*'fixed'"),
        ({"dtypes": ("int8",)}, "dtypes are at least one of float32, bfloat16, fp8, .*'int8'"),
        ({"temperature": 0.0}, r"temperature must be finite and above 0: got 0\.0"),
        ({"model": Path("nowhere")}, "a model is the folder of a checkpoint: 'nowhere' is none"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(
    changed: dict[str, Any], sentence: str, planned: DriftStudy
) -> None:
    with pytest.raises(StudyError, match=sentence):
        replace(planned, **changed)


SHIPPED = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent


def test_config_and_weights_decide_the_digest_and_what_lies_beside_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = {model_digest(tmp_path)}
    assert weights_digest(tmp_path) == hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "measured.json").write_text("[1]")
    assert found == {model_digest(tmp_path)}
    for name in ("config.json", "model.safetensors", "more.safetensors"):
        (tmp_path / name).write_bytes(b"other")
        found.add(model_digest(tmp_path))
    assert len(found) == 4
    (tmp_path / "model.safetensors").unlink()
    assert weights_digest(tmp_path) == model_digest(tmp_path)


def test_the_recorded_study_was_run_on_the_shipped_checkpoint() -> None:
    facts = json.loads((SHIPPED / "measured.json").read_text())
    study = read_study(data_path("runs", "drift", "summary.csv").parent)
    recorded = str(origin_of(study.origin).parameters["model_sha256"])
    assert facts["checkpoint"]["sha256"].startswith(recorded)
    assert weights_digest(SHIPPED).startswith(recorded)
