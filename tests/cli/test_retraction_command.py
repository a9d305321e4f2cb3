"""``kvlab retraction``: the named columns, traces good and bad, and a killed run that goes on."""

import io
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from kvlab.engine import simulate
from kvlab.engine.workload import Workload, default_workload, load_trace
from kvlab.lab import retraction as study_module
from kvlab.lab.retraction import COLUMNS, RetractionStudy, suggest_budgets
from tests.cli.conftest import ROOT, Run, Start

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


HEAD = "arrival_s,prompt_tokens,output_tokens\n0,5,5\n"
LATE = "got arrival_s=1e+308 of request 1 at step_time_s=0.025; count seconds"
REFUSED: list[tuple[str | None, list[str], str]] = [
    (HEAD + "1,x,5\n", [], "trace.csv, line 3, column prompt"),
    ("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,5,5\n", [], "trace.csv, line 2, column TIMEST"),
    ('{"timestamp": 1, "input_length": 5}\n', [], "trace.csv, line 1, column output_length"),
    ("hello\n", [], "trace.csv, line 1: begins like no known trace format"),
    ("", [], "trace.csv: a trace begins with a header or a request: got an empty file"),
    (HEAD + "1e308,5,5\n", [], LATE),
    (HEAD + "5,5,5\n", ["--step-time", "1e-320"], "of request 1 at step_time_s=1e-320"),
    (
        None,
        ["--trace", "/nowhere/trace.csv"],
        "a trace must exist: no file at '/nowhere/trace.csv'",
    ),
    (None, ["--trace", "/"], "a trace is one file: got the folder '/'"),
    (None, ["--budgets", "0.000001"], "a pool needs 2 pages a rank"),
    (None, ["--budgets", "1,1.0"], "budgets_gib must name at least one value, each once"),
    (None, ["--dcp-sizes", "2,2"], "dcp_sizes must name at least one value, each once: got (2, 2"),
    (None, ["--model", "GPT-2"], "a model is named as in data/models/geometry.csv: got 'GPT-2'"),
    (None, ["--model", "mine"], "pass a ModelGeometry of your own (kvlab retraction --geometry)"),
    (None, ["--model", "Kimi-K3"], "bytes need the width of a latent row"),
    (None, ["--geometry", "mla_layers=40"], "a row of the KV cache needs mla_layers, kv_lora_ran"),
    (None, ["--page-size", "0"], "page_size is an int of at least 1"),
    (None, ["--cache", "pyproject.toml"], "cannot be written"),
    (None, ["--host-full", "recompute"], "got --host-full recompute without --host-gib"),
    (None, ["--host-gib", "1", "--restore", "recompute"], "got host_gib=1.0 with restore='recomp"),
    (None, ["--columns", "1"], "--columns is of a picture: got --columns 1 without --figure"),
    (None, ["--caption", "beside"], "--caption is of a picture: got --caption beside without"),
]


@pytest.mark.parametrize(("text", "words", "sentence"), REFUSED)
def test_a_study_that_cannot_be_made_is_one_sentence_before_the_work(
    text: str | None,
    words: list[str],
    sentence: str,
    run: Run,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(study_module, "simulate", lambda *_: pytest.fail("a run was made"))
    if text is not None:
        trace.write_text(text)
        words = ["--trace", str(trace), *words]
    done = run("retraction", *words)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert sentence in done.err and "Traceback" not in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_table_that_cannot_be_written_costs_neither_the_answer_nor_the_picture(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", 1]
    full = ["--csv", "/dev/full", "--figure", tmp_path / "a.svg"]
    done = run(*words, *full)
    assert (done.code, done.out) == (1, run(*words).out)
    assert "error: a table is written to a file that can be made: '/dev/full' gives" in done.err
    assert (tmp_path / "a.svg").read_text().rstrip().endswith("</svg>")
    done = run(*words, "--csv", "/dev/full", "--json")
    assert (done.code, len(json.loads(done.out)["rows"])) == (1, 2)


MINE = "mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64"


def test_a_geometry_of_ones_own_decides_pages_and_budgets_and_is_named(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    budget = 30.5 * 4 * 35_840 / 2**30
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,2", "--budgets", budget]
    assert "mine-40 in bf16, 35,840 bytes a token, backup\n" in (
        run(*words, "--geometry", f"{MINE},name=mine-40").out
    )
    found = json.loads(run(*words, "--geometry", MINE, "--json").out)
    assert [row["num_pages"] for row in found["rows"]] == [29, 29]
    assert found["rows"][0]["retractions"] > 0
    assert found["parameters"]["model"] == "own geometry"
    fields = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}
    assert found["parameters"]["geometry"] == fields
    (tmp_path / "mine.json").write_text(json.dumps(fields))
    again = json.loads(run(*words, "--geometry", tmp_path / "mine.json", "--json").out)
    assert again["rows"] == found["rows"]
    assert again["origin"]["command"].endswith("--geometry mine.json --json")

    def budgets(geometry: str) -> list[float]:
        words = ["--trace", trace, "--dcp-sizes", 16, "--geometry", geometry, "--json"]
        told: list[float] = json.loads(run("retraction", *words).out)["parameters"]["budgets_gib"]
        return told

    pairs = zip(budgets(MINE), budgets(MINE.replace("40", "80")), strict=True)
    assert [b / a for a, b in pairs] == pytest.approx([2] * 4, rel=0.02)


def test_a_picture_is_as_wide_as_the_columns_it_is_for(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    for ending, asked, inches in (
        ("pdf", [], 3.5),
        ("svg", ["--columns", 2], 7.2),
        ("png", ["--columns", 1], 3.5),
    ):
        out = tmp_path / f"counts.{ending}"
        done = run("retraction", "--trace", trace, *NODE, "--figure", out, *asked)
        assert (done.code, done.err) == (0, f"wrote {out} ({inches:g} in wide)\n")
    pdf = (tmp_path / "counts.pdf").read_bytes()
    box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", pdf)
    assert box is not None
    assert float(box[1]) == pytest.approx(72 * 3.5)
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert b"/Subtype /Type3" not in pdf
    with Image.open(tmp_path / "counts.png") as image:
        assert image.width == 200 * 3.5
    assert 'width="518.4pt"' in (tmp_path / "counts.svg").read_text()
    assert not (tmp_path / "counts.txt").exists()


def test_a_caption_beside_the_picture_has_definition_and_origin_and_leaves_the_picture_lower(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    out, inside = tmp_path / "counts.png", tmp_path / "inside.png"
    words = ["retraction", "--trace", trace, *NODE, "--csv", tmp_path / "counts.csv", "--figure"]
    assert run(*words, inside, "--caption", "inside").code == 0
    done = run(*words, out, "--caption", "beside")
    assert done.err.endswith(f"wrote {tmp_path / 'counts.txt'}\n")
    title, definition, origin = (tmp_path / "counts.txt").read_text().split("\n\n")
    assert title.startswith("Retractions ")
    assert definition.endswith("over a whole run of 24 requests, simulated.")
    assert origin.startswith("kvlab retraction --trace trace.csv --page-size 4")
    assert "model=Kimi-Linear-48B-A3B" in origin
    assert str(tmp_path) not in origin
    with Image.open(out) as bare, Image.open(inside) as full:
        assert bare.width == full.width
        assert bare.height < full.height - 100
    assert len(pd.read_csv(tmp_path / "counts.csv")) == 10


def test_a_hint_names_no_memory_with_which_the_longest_request_would_be_aborted(
    run: Run, trace: Path
) -> None:
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,50000,5\n1,10,5\n")
    words = ["retraction", "--trace", trace, "--dcp-sizes", 1, "--concurrency", 1]
    suggested = run(*words)
    assert "with less memory the longest request would be aborted" in suggested.err
    assert "--budgets" not in suggested.err
    least = re.search(r"\(--budgets ([0-9.]+)\)", run(*words, "--budgets", 1).err)
    assert least is not None
    assert float(least[1]) < 1
    again = json.loads(run(*words, "--budgets", least[1], "--json").out)
    assert again["rows"][0]["aborted"] == 0
