"""``kvlab crash``: the census of any pool, and what each retraction did."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from kvlab.index import DcpLayout
from kvlab.lab import crash_cuda, origin
from kvlab.lab.crash import page_census
from kvlab.lab.crash_cuda import ChildResult, read_record
from tests.cli.conftest import Run

SMALL = ["crash", "--dcp-size", 2, "--page-size", 2]
CENSUS = ("silent", "straddling", "out_of_range")


def document(run: Run, *words: object) -> dict[str, Any]:
    done = run(*words, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_the_named_pool_has_127_silent_1_straddling_and_896_pages_out_of_range(run: Run) -> None:
    found = document(run, "crash", "--dcp-size", 8, "--page-size", 64, "--num-pages", 1024,
                     "--regime", "low", "--tokens", 600)  # fmt: skip
    assert tuple(found[name] for name in CENSUS) == (127, 1, 896)
    assert found["layout"]["rows_per_rank"] == 65_600
    before, after = found["runs"]
    assert (before["code"], before["error"], before["positions"]) == ("before", None, 600)
    assert before["wrong_positions"] == sum(x["wrong"] for x in before["wrong_by_rank"]) > 0
    assert before["damaged_rows"] == sum(x["rows"] for x in before["damaged_by_request"]) > 0
    assert before["self_consistent"] is True
    assert (after["wrong_positions"], after["damaged_rows"]) == (0, 0)
    assert [x["rank"] for x in after["wrong_by_rank"]] == list(range(8))


def test_both_regimes_and_both_codes_are_run_unless_one_is_named(run: Run) -> None:
    found = document(run, *SMALL, "--num-pages", 20)
    pairs = [("full", "before"), ("full", "after"), ("low", "before"), ("low", "after")]
    assert [(x["regime"], x["code"]) for x in found["runs"]] == pairs
    assert found["skipped"] == []
    failed = found["runs"][0]
    assert failed["error"].endswith("is out of bounds for dimension 0 with size 42")
    assert (failed["failed_rank"], failed["wrong_positions"]) == (0, None)
    assert failed["wrong_by_rank"] == failed["damaged_by_request"] == []
    one = document(run, *SMALL, "--num-pages", 20, "--regime", "full", "--code", "after")
    assert [(x["regime"], x["code"]) for x in one["runs"]] == [("full", "after")]
    done = run(*SMALL, "--num-pages", 20)
    for words in [
        r"full, before the fix: rank 0 failed: index",
        r"full, after the fix: every position is right on every rank",
        r"low, before the fix: no error, but wrong positions on rank 0: 6, 1: 5; the row of",
        r"rows of other requests are overwritten",
    ]:
        assert words in done.out


@pytest.mark.parametrize(
    ("pages", "run_", "skipped"),
    [(1, [], ["full", "low"]), (5, [], ["full", "low"]), (6, ["full", "full"], ["low"])],
)
def test_a_regime_that_the_pool_is_too_small_for_is_skipped_with_a_sentence(
    pages: int, run_: list[str], skipped: list[str], run: Run
) -> None:
    found = document(run, *SMALL, "--num-pages", pages)
    assert sum(found[name] for name in CENSUS) == pages
    assert [x["regime"] for x in found["runs"]] == run_
    assert [x["regime"] for x in found["skipped"]] == skipped
    assert all("use more pages" in x["reason"] for x in found["skipped"])
    text = run(*SMALL, "--num-pages", pages).out
    assert [line.split()[0] for line in text.splitlines() if " skipped: " in line] == skipped


def test_the_census_alone_is_made_for_a_pool_that_no_memory_would_hold(run: Run) -> None:
    found = document(run, "crash", "--num-pages", 10**12, "--census")
    assert sum(found[name] for name in CENSUS) == 10**12
    assert found["runs"] == found["skipped"] == []
    found = document(run, "crash", "--num-pages", 10**12)
    assert [x["regime"] for x in found["skipped"]] == ["full", "low"]


def test_csv_is_the_census_page_by_page(run: Run) -> None:
    table = pd.read_csv(io.StringIO(run(*SMALL, "--num-pages", 9, "--census", "--csv", "-").out))
    pd.testing.assert_frame_equal(table, page_census(DcpLayout(2, 2, 9)))


def test_one_rank_has_nothing_to_show_and_the_text_says_so(run: Run) -> None:
    done = run("crash", "--dcp-size", 1, "--page-size", 2, "--num-pages", 20)
    assert "slot and row are the same number: nothing can go wrong" in done.out
    assert done.out.count("every position is right on every rank") == 4


def test_options_of_a_retraction_reach_the_study(run: Run) -> None:
    words = ["--num-pages", 20, "--regime", "low", "--code", "before", "--same-slots"]
    (only,) = document(run, *SMALL, *words)["runs"]
    assert only["same_slots"] is True
    assert only["wrong_positions"] > 0
    assert (only["damaged_rows"], only["damaged_by_request"]) == (0, [])
    found = document(run, *SMALL, "--num-pages", 8, "--tokens", 3)
    assert [x["positions"] for x in found["runs"]] == [3] * 4


OUTPUT = ("/{}/me/Index.cu:1: Assertion `x` failed.".format("home"), "CUDA error: device-side")
DIED = ChildResult("cuda", 134, OUTPUT[0], OUTPUT)
RECORDED = [*SMALL, "--num-pages", 20, "--device", "cuda", "--regime", "full", "--code", "before"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that is made up, on which only the child of the crash runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "A made-up GPU")
    monkeypatch.setattr(origin, "driver", lambda: "123.45")
    monkeypatch.setattr(crash_cuda, "crash_in_child", lambda *_: DIED)


@pytest.mark.usefixtures("gpu")
def test_on_cuda_the_copy_that_fails_runs_in_a_child_and_is_recorded_without_paths(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (only,) = document(run, *RECORDED)["runs"]
    assert only == {"regime": "full", "code": "before", "error": OUTPUT[0], "in_child": True,
                    "exit_code": 134, "tail": list(OUTPUT)}  # fmt: skip
    out = tmp_path / "crash.json"
    done = run(*RECORDED, "--record", out)
    assert (done.code, done.err) == (0, "wrote crash.json\n")
    assert "full, before the fix: the child ended with exit code 134: /" in done.out
    assert "/me/" not in out.read_text() and str(tmp_path) not in out.read_text()
    found = read_record(out)
    assert found.origin.device == "A made-up GPU (driver 123.45)"
    assert found.child.exit_code == 134
    assert found.origin.command.endswith("--record crash.json")
    # Without a name it goes where the project keeps it.
    monkeypatch.chdir(tmp_path)
    refused = run(*RECORDED, "--record")
    assert refused.code == 1
    assert "there is no folder 'data/runs' here; run it in the checkout" in refused.err
    (tmp_path / "data" / "runs").mkdir(parents=True)
    assert run(*RECORDED, "--record").code == 0
    assert read_record(tmp_path / "data" / "runs" / "crash-cuda.json").child.exit_code == 134


@pytest.mark.usefixtures("gpu")
def test_a_pool_in_which_nothing_crashed_leaves_no_recording(run: Run, tmp_path: Path) -> None:
    done = run("crash", "--device", "cuda", "--num-pages", 1, "--record", tmp_path / "crash.json")
    assert done.code == 1
    assert "a pool of 1 pages ran none; use the default sizes" in done.err
    assert list(tmp_path.iterdir()) == []
