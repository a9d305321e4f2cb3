"""``kvlab drift``: the named columns in three forms, options, a kill that goes on."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.cli import drift
from kvlab.lab.drift import DTYPES, NAMES, SUMMARY, DriftStudy, default_prompts, read_study
from kvlab.lab.drift import study as study_module
from tests.cli.conftest import Run
from tests.lab.drift.tiny_study import prompts_file, save_checkpoint


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A study of a random tiny model that takes a second, and keeps its runs."""
    folder = tmp_path_factory.mktemp("drift")
    prompts = prompts_file(folder / "p.jsonl", ((6, 6), (8, 5), (5, 6), (7, 5)))
    return [
        *("drift", "--model", save_checkpoint(folder / "model"), "--prompts", prompts),
        *("--dcp-sizes", "1,2", "--dtypes", "float32", "--jobs", 1, "--cache", folder / "cache"),
        *("--conditions", "forced_fixed,forced_before_fix,defect:nan_padding"),
    ]


def test_the_forms_hold_what_the_study_gives_with_the_named_columns_first(
    run: Run, words: list[object], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    done = run(*words, "--csv", out, "--out", tmp_path / "tables")
    assert done.code == 0, done.err
    assert f"wrote {out} (8 rows)" in done.err and "wrote the tables to" in done.err
    for part in ("measured: 4 synthetic requests", "forced_before_fix", "confirmed: ", "Reported,"):
        assert part in done.out
    table = pd.read_csv(out)
    assert tuple(table.columns[: len(drift.COLUMNS)]) == drift.COLUMNS
    assert set(table.columns) == set(SUMMARY)
    assert table.groupby("condition")["dcp_size"].apply(list).tolist() == [[1, 2]] * 4
    assert (table.loc[table["condition"] != "no_retraction", "retractions"] > 0).all()
    assert len(read_study(tmp_path / "tables").summary) == 8
    assert str(tmp_path) not in (tmp_path / "tables" / "origin.json").read_text()

    found = json.loads(run(*words, "--json").out)
    assert (found["label"], found["workload"]) == ("measured", "synthetic")
    rows = pd.DataFrame(found["rows"])
    for name in ("max_abs_dlogprob", "kl", "retractions", "nan_tokens", "median_onset"):
        assert rows[name].astype(float).tolist() == pytest.approx(table[name].tolist(), nan_ok=True)
    outcomes = {v["name"]: v["outcome"] for v in found["verdicts"]}
    assert outcomes["before_fix_nothing_at_1_float32"] == "confirmed"
    assert outcomes["restored_bits"] == "confirmed"
    assert found["origin"]["parameters"]["dcp_sizes"] == [1, 2]
    assert "--model model" in found["origin"]["command"]


class Planned(Exception):
    """Stops a command once its study is known."""


def planned(
    run: Run, monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[DriftStudy, dict[str, Any]]:
    """The study that a command line describes, and how it would be run."""
    found: list[tuple[DriftStudy, dict[str, Any]]] = []

    def stop(study: DriftStudy, **given: Any) -> None:
        found.append((study, given))
        raise Planned

    monkeypatch.setattr(DriftStudy, "run", stop)
    with pytest.raises(Planned):
        run("drift", *words)
    return found[0]


def test_every_option_reaches_the_study(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = ("--model", tmp_path)
    study, given = planned(run, monkeypatch, *base)
    assert (study.model, study.prompts) == (tmp_path, default_prompts())
    assert (study.dcp_sizes, study.conditions, study.dtypes) == ((1, 2, 4, 8), NAMES, DTYPES)
    assert (study.seed, given["jobs"], given["cache"]) == (0, None, None)
    study, given = planned(
        run, monkeypatch, *base, "--seed", 3, "--temperature", 0.5, "--jobs", 2,
        "--cache", tmp_path / "kept", "--requests", 5,
        "--dcp-sizes", "3", "--dtypes", "fp8,float32", "--conditions", "natural",
    )  # fmt: skip
    assert (study.seed, given["jobs"], given["cache"]) == (3, 2, tmp_path / "kept")
    assert len(study.prompts.tokens) == 5 and study.temperature == 0.5
    assert (study.dcp_sizes, study.conditions) == ((3,), ("natural",))
    assert study.dtypes == ("fp8", "float32")
    quick, _ = planned(run, monkeypatch, *base, "--quick")
    assert quick.dcp_sizes == (1, 4) and len(quick.prompts.tokens) == 12
    assert quick.conditions == NAMES and quick.dtypes == ("float32", "fp8")
    assert max(r.output_tokens for r in quick.prompts.workload.requests) == 24
    quick, _ = planned(run, monkeypatch, *base, "--quick", "--dcp-sizes", "8", "--requests", 2)
    assert quick.dcp_sizes == (8,) and len(quick.prompts.tokens) == 2


def test_folders_are_asked_for_before_the_work(
    run: Run, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "_make", lambda *_: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    done = run(*words, "--out", tmp_path / "file")
    assert done.code == 1 and "cannot be written" in done.err
    done = run(*words, "--cache", tmp_path / "file")
    assert done.code == 1 and "cannot be written" in done.err


def test_an_interrupted_study_says_where_its_runs_are_and_goes_on(
    run: Run, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "runs"
    made: list[object] = []
    make = study_module._make

    def interrupted(*given: Any) -> Any:
        made.append(given[2])
        if len(made) == 3:
            raise KeyboardInterrupt
        return make(*given)

    monkeypatch.setattr(study_module, "_make", interrupted)
    few = [*words, "--dcp-sizes", 1, "--conditions", "forced_fixed"]
    done = run(*few, "--cache", cache)
    assert done.code == 130
    assert f"finished runs are kept in {cache}" in done.err
    assert len(list(cache.glob("*.kept"))) == 2
    damaged = min(cache.glob("*.kept"))
    damaged.write_bytes(b"not a run")
    again = run(*few, "--cache", cache, "--csv", "-")
    assert f"{damaged.name} is damaged" in again.err and "is made again" in again.err
    assert again.out == run(*few, "--csv", "-").out
    # The one that was interrupted and the damaged one are made twice.
    assert len(made) >= len(list(cache.glob("*.kept"))) + 2
