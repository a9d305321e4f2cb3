"""``kvlab retraction``: the named columns, traces good and bad, and a killed run that goes on."""

import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kvlab.engine import simulate
from kvlab.engine.workload import Workload, default_workload, load_trace
from kvlab.lab import retraction as study_module
from kvlab.lab.retraction import COLUMNS, RetractionStudy, suggest_budgets
from tests.cli.conftest import Run, Start

HEADER = (
    "dcp_size,budget_gib,capacity_tokens,requests,retractions,retracted_tokens,aborted,backup_gib,"
)
# Pages of 4 tokens and 29 of them on a rank: the trace does not fit at once.
FORCED = ["--force-retract-interval", 5]
NODE = ["--page-size", 4, "--budgets", "0.0009,0.002", "--reserved-decode-tokens", 2]


def test_csv_has_one_row_a_size_and_budget_with_the_named_columns_first(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    done = run("retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,2", "--csv", out)
    assert done.code == 0
    assert f"wrote {out} (4 rows)" in done.err
    assert out.read_text().startswith(HEADER)
    table = pd.read_csv(out)
    assert table[["dcp_size", "budget_gib"]].to_numpy().tolist() == [
        [1, 0.0009], [2, 0.0009], [1, 0.002], [2, 0.002],
    ]  # fmt: skip
    assert (table["requests"] == 24).all()
    assert table["retractions"].sum() > 0
    assert set(table["label"]) == {"simulated"}
    assert "simulated" in done.out


def test_the_three_forms_hold_what_the_study_gives(run: Run, trace: Path) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,3", "--concurrency", 7]
    expected = RetractionStudy(
        load_trace(trace),
        dcp_sizes=(1, 3),
        budgets_gib=(0.0009, 0.002),
        page_size=4,
        concurrency=7,
        reserved_decode_tokens=2,
    ).run(jobs=1)
    table = pd.read_csv(io.StringIO(run(*words, "--csv", "-").out))
    pd.testing.assert_frame_equal(table, expected)
    done = run(*words, "--json")
    found = json.loads(done.out)
    assert found["label"] == "simulated"
    assert found["rows"] == expected.to_dict("records")
    assert list(found["rows"][0])[: len(COLUMNS)] == list(COLUMNS)
    assert found["workload"]["requests"] == 24
    assert found["parameters"]["concurrency"] == 7
    assert found["origin"]["parameters"]["digest"] == load_trace(trace).fingerprint


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--open-loop"], {"concurrency": None}),
        (["--restore", "recompute"], {"restore": "recompute"}),
        (["--force-retract-interval", 5], {"force_retract_interval": 5}),
        ([*FORCED, "--host-gib", 0], {"force_retract_interval": 5, "host_gib": 0.0}),
        (
            [*FORCED, "--host-gib", 0, "--host-full", "recompute"],
            {"force_retract_interval": 5, "host_gib": 0.0, "host_full": "recompute"},
        ),
        (["--reserved-decode-tokens", 0], {"reserved_decode_tokens": 0}),
        (["--step-time", 0.5, "--open-loop"], {"step_time_s": 0.5, "concurrency": None}),
        (["--dtype", "fp8"], {"dtype": "fp8"}),
        (["--model", "DeepSeek-V2-Lite"], {"model": "DeepSeek-V2-Lite"}),
    ],
)
def test_every_option_reaches_the_study(
    words: list[object], changed: dict[str, Any], run: Run, trace: Path
) -> None:
    shape: dict[str, Any] = {"dcp_sizes": (1,), "budgets_gib": (0.01,), "page_size": 4}
    expected = RetractionStudy(load_trace(trace), **(shape | changed)).run(jobs=1)
    base = ["--trace", trace, "--dcp-sizes", 1, "--budgets", 0.01, "--page-size", 4]
    found = json.loads(run("retraction", *base, *words, "--json").out)
    assert found["rows"] == expected.to_dict("records")


def test_a_bounded_host_is_named_in_the_text_with_what_it_declined(run: Run, trace: Path) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", 1]
    assert "declined_backups" not in run(*words).out
    ended = run(*words, "--host-gib", 0).out
    assert "backup to 0 GiB of host, else abort\n" in ended
    assert "declined_backups  recomputed_tokens  label" in ended
    again = json.loads(run(*words, "--host-gib", 0, "--host-full", "recompute", "--json").out)
    assert [again["parameters"][name] for name in ("host_gib", "host_full")] == [0.0, "recompute"]
    row = again["rows"][0]
    assert row["declined_backups"] == row["retractions"] > 0
    assert row["recomputed_tokens"] > 0
    assert row["aborted"] == row["backup_gib"] == 0


@pytest.mark.parametrize("amount", ["-1", "nan", "inf", "much"])
def test_host_memory_is_an_amount(amount: str, run: Run) -> None:
    done = run("retraction", f"--host-gib={amount}")
    assert done.code == 2
    assert f"argument --host-gib: must be one number of at least 0: got '{amount}'" in done.err


def test_a_full_host_aborts_or_recomputes_and_nothing_else(run: Run) -> None:
    done = run("retraction", "--host-full", "wait")
    assert done.code == 2
    assert "argument --host-full: invalid choice: 'wait'" in done.err


def test_budgets_are_the_studys_for_the_shipped_workload_and_suggested_for_others(
    run: Run, trace: Path
) -> None:
    def budgets(*words: object) -> list[float]:
        done = run("retraction", "--dcp-sizes", 16, "--limit", 20, *words, "--json")
        found: list[float] = json.loads(done.out)["parameters"]["budgets_gib"]
        return found

    assert budgets() == [0.5, 1.0, 2.0, 4.0]
    head = load_trace(trace, 20)
    assert budgets("--trace", trace) == list(suggest_budgets(head, "Kimi-Linear-48B-A3B"))
    shipped = default_workload().head(20)
    fp8 = suggest_budgets(shipped, "Kimi-Linear-48B-A3B", "fp8", 3)
    assert budgets("--dtype", "fp8", "--concurrency", 3) == list(fp8)


def test_where_nothing_is_retracted_a_hint_says_what_to_lower(run: Run, trace: Path) -> None:
    done = run("retraction", "--trace", trace, "--dcp-sizes", 1, "--budgets", "8", "--json")
    assert done.code == 0
    assert json.loads(done.out)["rows"][0]["retractions"] == 0
    assert done.err.startswith("hint: no run retracted a request")
    assert "(--budgets 1)" in done.err
    assert "--reserved-decode-tokens, now 64" in done.err
    assert run("retraction", "--trace", trace, *NODE, "--dcp-sizes", 1, "--json").err == ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n0,5,5\n1,x,5\n", "bad.csv, line 3, column prompt"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,5,5\n", "bad.csv, line 2, column TIMESTAMP"),
        ('{"timestamp": 1, "input_length": 5}\n', "bad.csv, line 1, column output_length"),
        ("hello\n", "bad.csv, line 1: begins like no known trace format"),
        ("", "bad.csv: a trace begins with a header or a request: got an empty file"),
    ],
)
def test_a_malformed_trace_is_named_with_its_line(
    text: str, sentence: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    done = run("retraction", "--trace", tmp_path / "bad.csv")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert sentence in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trace", "/nowhere/trace.csv"], "a trace must exist: no file at '/nowhere/trace.csv'"),
        (["--trace", "/"], "a trace is one file: got the folder '/'"),
        (["--budgets", "0.000001"], "a pool needs 2 pages a rank"),
        (["--budgets", "1,1.0"], "budgets_gib must name at least one value, each once"),
        (["--dcp-sizes", "2,2"], "dcp_sizes must name at least one value, each once: got (2, 2)"),
        (["--model", "GPT-2"], "a model is named as in data/models/geometry.csv: got 'GPT-2'"),
        (["--model", "Kimi-K3"], "bytes need the width of a latent row"),
        (["--page-size", "0"], "page_size is an int of at least 1"),
    ],
)
def test_a_study_that_cannot_be_made_is_one_sentence(
    words: list[str], sentence: str, run: Run
) -> None:
    done = run("retraction", *words)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert sentence in done.err
    assert done.err.count("\n") == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no file")
def test_places_that_cannot_be_written_are_refused_before_the_work(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_module, "simulate", lambda *_: pytest.fail("a run was made"))
    done = run("retraction", "--trace", trace, *NODE, "--csv", "/proc/x.csv")
    assert (done.code, done.out) == (2, "")
    assert "OUT is a file that can be written: '/proc/x.csv' gives No such file" in done.err
    done = run("retraction", "--trace", trace, *NODE, "--cache", "/proc")
    assert (done.code, done.out) == (1, "")
    assert "a cache is a folder that can be written: '/proc' gives No such file" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_file_that_cannot_be_written_at_the_end_costs_the_file_alone(
    run: Run, trace: Path
) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", 1]
    done = run(*words, "--csv", "/dev/full")
    assert (done.code, done.out) == (1, run(*words).out)
    assert "error: a table is written to a file that can be made: '/dev/full' gives" in done.err
    done = run(*words, "--csv", "/dev/full", "--json")
    assert done.code == 1
    assert len(json.loads(done.out)["rows"]) == 2


@pytest.mark.parametrize(
    ("arrival", "words", "sentence"),
    [
        ("1e308", [], "got arrival_s=1e+308 of request 1 at step_time_s=0.025; count seconds"),
        ("5", ["--step-time", "1e-320"], "arrival_s=5.0 of request 1 at step_time_s=1e-320"),
    ],
)
def test_an_arrival_past_all_steps_is_refused_before_the_work(
    arrival: str, words: list[str], sentence: str, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "late.csv"
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,5,5\n{arrival},5,5\n")
    done = run("retraction", "--trace", path, *NODE, *words)
    assert (done.code, done.out) == (1, "")
    assert "error: an arrival falls on a step below 2**53: " in done.err
    assert sentence in done.err


def test_the_command_of_an_origin_names_files_without_their_folders(
    run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "k=v (2)" / "alice's home"
    folder.mkdir(parents=True)
    path = folder / "my t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n")
    words = [f"--trace={path}", "--cache", folder / "kept", "--csv", folder / "o.csv", *NODE[:4]]
    done = run("retraction", *words, "--json")
    origin = json.loads(done.out)["origin"]
    assert origin["command"] == (
        "kvlab retraction '--trace=my t.csv' --cache kept --csv o.csv --page-size 4 "
        "--budgets 0.0009,0.002 --json"
    )
    assert "alice" not in done.out


def test_a_cache_that_is_a_file_is_refused(run: Run, trace: Path) -> None:
    done = run("retraction", "--trace", trace, *NODE, "--cache", trace)
    assert done.code == 1
    assert "a cache is a folder that can be written" in done.err


def test_an_interrupt_says_where_the_finished_rows_are(
    run: Run, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_module, "simulate", interrupted)
    done = run("retraction", "--trace", trace, *NODE, "--cache", tmp_path / "kept")
    assert (done.code, done.out) == (130, "")
    assert done.err == f"\nfinished rows are kept in {tmp_path / 'kept'}\n\nstopped\n"


def test_a_run_that_is_killed_goes_on_where_it_was(
    run: Run, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [str(c) for c in range(1, 301)]  # far more than it can do before the kill
    words = ["retraction", "--limit", 400, "--budgets", "0.5", "--cache", tmp_path]
    with start(*words, "--dcp-sizes", ",".join(sizes), "--jobs", 1) as process:
        while process.poll() is None and len(list(tmp_path.glob("*.kept"))) < 2:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    kept = len(list(tmp_path.glob("*.kept")))
    assert kept >= 2

    seen = []

    def counted(workload: Workload, config: Any) -> Any:
        seen.append(config.layout.dcp_size)
        return simulate(workload, config)

    monkeypatch.setattr(study_module, "simulate", counted)
    some = ["--dcp-sizes", ",".join(sizes[: kept + 2]), "--csv", "-"]
    resumed = run(*words, *some)
    assert seen == [kept + 1, kept + 2]
    fresh = run("retraction", "--limit", 400, "--budgets", "0.5", *some)
    assert resumed.out == fresh.out


def test_a_bound_of_the_host_that_could_not_act_is_refused(run: Run) -> None:
    alone = run("retraction", "--host-full", "recompute")
    assert alone.code == 1
    assert "got --host-full recompute without --host-gib" in alone.err
    idle = run("retraction", "--host-gib", 1, "--restore", "recompute")
    assert idle.code == 1
    assert "got host_gib=1.0 with restore='recompute', which makes none" in idle.err
