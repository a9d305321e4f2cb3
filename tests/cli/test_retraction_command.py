"""``kvlab retraction``: the named columns, options, pictures, and a killed run that goes on."""

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
from tests.cli.conftest import Run, Start

FORCED = ["--force-retract-interval", 5]
# Pages of 4 tokens and 29 of them on a rank: the trace does not fit at once.
NODE = ["--page-size", 4, "--budgets", "0.0009,0.002", "--reserved-decode-tokens", 2]


def test_the_three_forms_hold_what_the_study_gives_with_the_named_columns_first(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,3", "--concurrency", 7]
    shape: dict[str, Any] = {"dcp_sizes": (1, 3), "budgets_gib": (0.0009, 0.002), "page_size": 4}
    study = RetractionStudy(load_trace(trace), **shape, concurrency=7, reserved_decode_tokens=2)
    expected = study.run(jobs=1)
    assert expected["retractions"].sum() > 0
    out = tmp_path / "out.csv"
    done = run(*words, "--csv", out)
    assert (done.code, done.err) == (0, f"wrote {out} (4 rows)\n")
    assert "simulated" in done.out
    assert run(*words, "--csv", "-").out == out.read_text()
    pd.testing.assert_frame_equal(pd.read_csv(out), expected)
    found = json.loads(run(*words, "--json").out)
    assert found["label"] == "simulated"
    assert found["rows"] == expected.to_dict("records")
    assert list(found["rows"][0])[: len(COLUMNS)] == list(COLUMNS)
    assert (found["workload"]["requests"], found["parameters"]["concurrency"]) == (24, 7)
    assert found["origin"]["parameters"]["digest"] == load_trace(trace).fingerprint


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--open-loop"], {"concurrency": None}),
        (["--restore", "recompute"], {"restore": "recompute"}),
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


def test_where_nothing_is_retracted_a_hint_says_what_to_lower_without_an_abort(
    run: Run, trace: Path
) -> None:
    words = ["retraction", "--trace", trace, "--dcp-sizes", 1]
    done = run(*words, "--budgets", "8", "--json")
    assert json.loads(done.out)["rows"][0]["retractions"] == 0
    assert done.err.startswith("hint: no run retracted a request")
    assert "(--budgets 1)" in done.err
    assert "--reserved-decode-tokens, now 64" in done.err
    assert run(*words, *NODE, "--json").err == ""

    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,50000,5\n1,10,5\n")
    words += ["--concurrency", 1]
    suggested = run(*words)
    assert "with less memory the longest request would be aborted" in suggested.err
    assert "--budgets" not in suggested.err
    least = re.search(r"\(--budgets ([0-9.]+)\)", run(*words, "--budgets", 1).err)
    assert least is not None
    assert float(least[1]) < 1
    again = json.loads(run(*words, "--budgets", least[1], "--json").out)
    assert again["rows"][0]["aborted"] == 0


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
    assert resumed.out == run("retraction", "--limit", 400, "--budgets", "0.5", *some).out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_table_that_cannot_be_written_costs_neither_the_answer_nor_the_picture(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", 1]
    done = run(*words, "--csv", "/dev/full", "--figure", tmp_path / "a.svg")
    assert (done.code, done.out) == (1, run(*words).out)
    assert "error: a table is written to a file that can be made: '/dev/full' gives" in done.err
    assert (tmp_path / "a.svg").read_text().rstrip().endswith("</svg>")


def test_a_geometry_of_ones_own_decides_pages_and_budgets_and_is_named(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    mine = "mla_layers=40,kv_lora_rank=384,qk_rope_head_dim=64"
    budget = 30.5 * 4 * 35_840 / 2**30
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,2", "--budgets", budget]
    told = run(*words, "--geometry", f"{mine},name=mine-40").out
    assert "mine-40 in bf16, 35,840 bytes a token, backup\n" in told
    found = json.loads(run(*words, "--geometry", mine, "--json").out)
    assert [row["num_pages"] for row in found["rows"]] == [29, 29]
    assert found["rows"][0]["retractions"] > 0
    fields = {"mla_layers": 40, "kv_lora_rank": 384, "qk_rope_head_dim": 64}
    assert found["parameters"]["model"] == "own geometry"
    assert found["parameters"]["geometry"] == fields
    (tmp_path / "mine.json").write_text(json.dumps(fields))
    again = json.loads(run(*words, "--geometry", tmp_path / "mine.json", "--json").out)
    assert again["rows"] == found["rows"]
    assert again["origin"]["command"].endswith("--geometry mine.json --json")


def test_a_picture_is_as_wide_as_its_columns_and_a_caption_may_stand_beside_it(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    words = ["retraction", "--trace", trace, *NODE, "--dcp-sizes", "1,2", "--figure"]
    for name, asked, inches in (
        ("counts.pdf", [], 3.5),
        ("counts.svg", ["--columns", 2], 7.2),
        ("full.png", ["--columns", 1], 3.5),
    ):
        done = run(*words, tmp_path / name, *asked)
        assert (done.code, done.err) == (0, f"wrote {tmp_path / name} ({inches:g} in wide)\n")
    pdf = (tmp_path / "counts.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # TrueType, embedded
    assert 'width="518.4pt"' in (tmp_path / "counts.svg").read_text()
    assert not list(tmp_path.glob("*.txt"))

    done = run(*words, tmp_path / "bare.png", "--caption", "beside")
    assert done.err.endswith(f"wrote {tmp_path / 'bare.txt'}\n")
    title, definition, origin = (tmp_path / "bare.txt").read_text().split("\n\n")
    assert title.startswith("Retractions ")
    assert "simulated" in definition
    assert origin.startswith("kvlab retraction --trace trace.csv --page-size 4")
    assert str(tmp_path) not in origin
    with Image.open(tmp_path / "bare.png") as bare, Image.open(tmp_path / "full.png") as full:
        assert bare.width == full.width == 200 * 3.5
        assert bare.height < full.height - 100
