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
from kvlab.lab.crash import CrashStudy, page_census
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
    found = document(
        run, "crash", "--dcp-size", 8, "--page-size", 64, "--num-pages", 1024, "--regime", "low"
    )
    assert tuple(found[name] for name in CENSUS) == (127, 1, 896)
    assert found["layout"] == {
        "dcp_size": 8,
        "page_size": 64,
        "num_pages": 1024,
        "interleave": 1,
        "widened_page_size": 512,
        "slot_end": 524_800,
        "rows_per_rank": 65_600,
        "capacity_tokens": 524_288,
    }
    before, after = found["runs"]
    assert (before["code"], before["error"], before["positions"]) == ("before", None, 1281)
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
    assert "of at most 8,388,608 slots: got 512,000,000,000,512" in found["skipped"][0]["reason"]
    done = run("crash", "--num-pages", 10**12, "--census", "--csv", "-")
    assert done.code == 1
    assert "one row a page, at most 10,000,000: got 1,000,000,000,000 pages" in done.err


def test_csv_is_the_census_page_by_page(run: Run) -> None:
    done = run(*SMALL, "--num-pages", 9, "--census", "--csv", "-")
    assert (done.code, done.err) == (0, "")
    table = pd.read_csv(io.StringIO(done.out))
    pd.testing.assert_frame_equal(table, page_census(DcpLayout(2, 2, 9)))


def test_the_table_for_people_says_what_happened_in_words(run: Run) -> None:
    done = run(*SMALL, "--num-pages", 20)
    assert (done.code, done.err) == (0, "")
    for words in [
        r"full, before the fix: rank 0 failed: index",
        r"full, after the fix: every position is right on every rank",
        r"low, before the fix: no error, but wrong positions on rank 0: 6, 1: 5; the row of",
        r"rows of other requests are overwritten",
    ]:
        assert words in done.out


def test_one_rank_has_nothing_to_show_and_the_text_says_so(run: Run) -> None:
    done = run("crash", "--dcp-size", 1, "--page-size", 2, "--num-pages", 20)
    assert "slot and row are the same number: nothing can go wrong" in done.out
    assert done.out.count("every position is right on every rank") == 4


def test_the_same_slots_leave_others_unharmed_and_the_victim_wrong(run: Run) -> None:
    words = ["--num-pages", 20, "--regime", "low", "--code", "before", "--same-slots"]
    (only,) = document(run, *SMALL, *words)["runs"]
    assert only["same_slots"] is True
    assert only["wrong_positions"] > 0
    assert (only["damaged_rows"], only["damaged_by_request"]) == (0, [])


def test_fewer_tokens_make_a_small_pool_enough(run: Run) -> None:
    found = document(run, *SMALL, "--num-pages", 8, "--tokens", 3)
    assert [x["positions"] for x in found["runs"]] == [3] * 4
    assert found["skipped"] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dcp-size", 0], "dcp_size must be at least 1"),
        (["--page-size", -1], "page_size must be at least 1"),
        (["--num-pages", 2**62], "the largest slot must fit int64"),
        (["--num-pages", 5, "--page-size", 2, "--dcp-size", 2, "--regime", "low"],
         "the low regime needs 6 requests of 11 positions"),
        (["--num-pages", 10**12, "--csv", "-"],
         "one row a page, at most 10,000,000: got 1,000,000,000,000 pages"),
        (["--dcp-size", 10**5, "--page-size", 1, "--num-pages", 12, "--regime", "low"],
         "ranks are looked at one by one, at most 4,096 of them: got --dcp-size 100,000"),
        (["--dcp-size", 4096, "--page-size", 1, "--num-pages", 12, "--regime", "full"],
         "requests of 10,241 positions, 167,788,544 times; use fewer ranks, fewer pages or --cens"),
        (["--device", "cuda:1"], "must be on this machine: got cuda:1, and there are 0 CUDA"),
    ],
)  # fmt: skip
def test_what_no_pool_can_do_is_one_sentence_before_the_work(
    words: list[object], sentence: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(CrashStudy, "run", lambda _: pytest.fail("a retraction was made"))
    done = run("crash", *words)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith("error: ")
    assert sentence in done.err


def test_on_cuda_the_copy_that_fails_runs_in_a_child(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def child(layout: DcpLayout, device: str) -> ChildResult:
        asked.append((layout, device))
        return ChildResult(device, 134, "Assertion `index < sizes[i]` failed.", ("Aborted",))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(crash_cuda, "crash_in_child", child)
    words = [*SMALL, "--num-pages", 9, "--device", "cuda", "--regime", "full", "--code", "before"]
    (only,) = document(run, *words)["runs"]
    assert only == {
        "regime": "full",
        "code": "before",
        "error": "Assertion `index < sizes[i]` failed.",
        "in_child": True,
        "exit_code": 134,
        "tail": ["Aborted"],
    }
    assert asked == [(DcpLayout(2, 2, 9), "cuda")]
    done = run(*words)
    assert "full, before the fix: the child ended with exit code 134: Assertion" in done.out


OUTPUT = ("/{}/me/Index.cu:1: Assertion `x` failed.".format("home"), "CUDA error: device-side")
DIED = ChildResult("cuda", 1, OUTPUT[0], OUTPUT)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that is made up, on which only the child of the crash runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "A made-up GPU")
    monkeypatch.setattr(origin, "driver", lambda: "123.45")
    monkeypatch.setattr(crash_cuda, "crash_in_child", lambda *_: DIED)


RECORDED = ["--device", "cuda", "--regime", "full", "--code", "before"]


@pytest.mark.usefixtures("gpu")
def test_a_crash_on_cuda_is_recorded_without_paths_of_the_machine(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "crash.json"
    done = run(*SMALL, "--num-pages", 20, *RECORDED, "--record", out)
    assert (done.code, done.err) == (0, "wrote crash.json\n")
    text = out.read_text()
    assert "/me/" not in text
    assert str(tmp_path) not in text
    found = read_record(out)
    assert (found.origin.device, found.child.exit_code) == ("A made-up GPU (driver 123.45)", 1)
    assert found.child.message == "Index.cu:1: Assertion `x` failed."
    assert found.origin.command.endswith("--record crash.json")


@pytest.mark.usefixtures("gpu")
def test_without_a_name_the_recording_goes_where_the_project_keeps_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "--num-pages", 20, *RECORDED, "--record"]
    refused = run(*words)
    assert refused.code == 1
    assert "there is no folder 'data/runs' here; run it in the checkout" in refused.err
    (tmp_path / "data" / "runs").mkdir(parents=True)
    assert run(*words).code == 0
    assert read_record(tmp_path / "data" / "runs" / "crash-cuda.json").child.exit_code == 1


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "--device cpu"),
        (["--device", "cuda", "--dcp-size", 1], "--dcp-size 1"),
        (["--device", "cuda", "--regime", "low", "--code", "after"], "--regime low, --code after"),
        (["--device", "cuda", "--census"], "--census"),
    ],
)
def test_what_would_not_crash_on_cuda_is_not_recorded(
    words: list[object], named: str, run: Run, tmp_path: Path
) -> None:
    done = run("crash", *words, "--record", tmp_path / "crash.json")
    assert done.code == 1
    assert f"more than one rank: got {named}; use `kvlab crash --device cuda --record`" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("gpu")
def test_a_pool_in_which_nothing_crashed_leaves_no_recording(run: Run, tmp_path: Path) -> None:
    words = ["--device", "cuda", "--num-pages", 1, "--record", tmp_path / "crash.json"]
    done = run("crash", *words)
    assert done.code == 1
    assert "a pool of 1 pages ran none; use the default sizes" in done.err
    assert list(tmp_path.iterdir()) == []
