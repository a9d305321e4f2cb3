"""``kvlab drift``: the named columns in three forms, options, refusals, a kill that goes on."""

import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.cli import drift
from kvlab.lab.drift import (
    DTYPES,
    NAMES,
    SUMMARY,
    DriftStudy,
    Point,
    default_prompts,
    read_study,
)
from kvlab.lab.drift import study as study_module
from kvlab.lab.keep import Values
from tests.cli.conftest import Run, Start
from tests.lab.drift.tiny_study import prompts_file, save_checkpoint

HEADER = (
    "condition,dcp_size,dtype,max_abs_dlogprob,mean_abs_dlogprob,kl,repetition_rate,retractions,"
)


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


def test_csv_has_one_row_a_condition_size_and_dtype_with_the_named_columns_first(
    run: Run, words: list[object], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    done = run(*words, "--csv", out)
    assert done.code == 0, done.err
    assert f"wrote {out} (8 rows)" in done.err
    assert out.read_text().startswith(HEADER)
    table = pd.read_csv(out, keep_default_na=True)
    assert set(table.columns) == set(SUMMARY)
    assert set(table["label"]) == {"measured"}
    assert table.groupby("condition")["dcp_size"].apply(list).tolist() == [[1, 2]] * 4
    assert (table.loc[table["condition"] != "no_retraction", "retractions"] > 0).all()


def test_the_three_forms_hold_what_the_study_gives(run: Run, words: list[object]) -> None:
    table = pd.read_csv(io.StringIO(run(*words, "--csv", "-").out))
    done = run(*words, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["label"], found["workload"]) == ("measured", "synthetic")
    rows = pd.DataFrame(found["rows"])
    assert list(rows.columns[: len(drift.COLUMNS)]) == list(drift.COLUMNS)
    for name in ("max_abs_dlogprob", "kl", "retractions", "nan_tokens"):
        assert rows[name].tolist() == pytest.approx(table[name].tolist(), nan_ok=True)
    outcomes = {v["name"]: v["outcome"] for v in found["verdicts"]}
    assert outcomes["before_fix_nothing_at_1_float32"] == "confirmed"
    assert outcomes["restored_bits"] == "confirmed"
    assert found["origin"]["parameters"]["dcp_sizes"] == [1, 2]
    assert "--model model" in found["origin"]["command"]
    calm = next(row for row in found["rows"] if row["condition"] == "no_retraction")
    assert calm["median_onset"] is None
    assert table.loc[table["condition"] == "no_retraction", "median_onset"].isna().all()
    text = run(*words).out
    for part in (
        "measured: 4 synthetic requests",
        "forced_before_fix",
        "confirmed: ",
        "Reported, not",
    ):
        assert part in text


def test_out_holds_tables_that_are_read_back(run: Run, words: list[object], tmp_path: Path) -> None:
    done = run(*words, "--out", tmp_path / "tables")
    assert done.code == 0 and "wrote the tables to" in done.err
    back = read_study(tmp_path / "tables")
    assert len(back.summary) == 8
    assert str(tmp_path) not in (tmp_path / "tables" / "origin.json").read_text()


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
    assert quick.conditions == NAMES
    assert max(r.output_tokens for r in quick.prompts.workload.requests) == 24
    quick, _ = planned(run, monkeypatch, *base, "--quick", "--dcp-sizes", "8", "--requests", 2)
    assert quick.dcp_sizes == (8,) and len(quick.prompts.tokens) == 2


def test_what_cannot_be_done_is_one_sentence(run: Run, words: list[object], tmp_path: Path) -> None:
    done = run("drift", "--model", tmp_path / "none")
    assert done.code == 1
    assert "a model is the folder of a checkpoint:" in done.err
    done = run("drift", "--model", tmp_path, "--requests", 49)
    assert done.code == 1 and "the study has 48 requests: got requests=49" in done.err
    done = run("drift", "--model", tmp_path, "--jobs", 1, "--requests", 1)
    assert done.code == 1 and "a checkpoint is a folder with a config.json" in done.err
    (tmp_path / "file").touch()
    done = run(*words[:-4], "--cache", tmp_path / "file", *words[-2:])
    assert done.code == 1 and "cannot be written" in done.err


def test_files_are_asked_for_before_the_work(
    run: Run, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DriftStudy, "run", lambda *_, **__: pytest.fail("it ran"))
    (tmp_path / "file").touch()
    done = run(*words, "--out", tmp_path / "file")
    assert done.code == 1 and "cannot be written" in done.err
    done = run("drift", "--prompts", tmp_path / "none")
    assert done.code == 1 and "prompts are JSON lines, each with" in done.err
    assert "No such file or directory" in done.err and "output cannot" not in done.err


def test_a_damaged_run_is_named_and_the_answer_is_the_same(run: Run, words: list[object]) -> None:
    before = run(*words, "--csv", "-").out
    cache = Path(str(words[words.index("--cache") + 1]))
    damaged = min(cache.glob("*.kept"))
    damaged.write_bytes(b"not a run")
    done = run(*words, "--csv", "-")
    assert done.out == before
    assert f"{damaged.name} is damaged" in done.err and "is made again" in done.err


def test_an_interrupted_study_says_where_its_runs_are_and_goes_on(
    start: Start, run: Run, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "runs"
    mine = [*words, "--cache", cache]
    process = start(*mine)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(cache.glob("*.kept"))) >= 3:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.02)
    _, err = process.communicate(timeout=60)
    kept = len(list(cache.glob("*.kept")))
    assert kept >= 3
    if process.returncode:  # it may just have ended
        assert process.returncode == 130
        assert f"finished runs are kept in {cache}" in err
    made: list[Point] = []
    make = study_module._make

    def count(study: DriftStudy, view: str, point: Point, reference: Values | None) -> Values:
        made.append(point)
        return make(study, view, point, reference)

    monkeypatch.setattr(study_module, "_make", count)
    assert run(*mine, "--csv", "-").out == run(*words, "--csv", "-").out
    study_size = len(list(cache.glob("*.kept")))
    assert len(made) == study_size - kept
