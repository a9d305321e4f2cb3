"""The benchmark times what is right: every pair gives equal results, and each row is whole."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, upstream
from kvlab.lab.bench.__main__ import main
from kvlab.lab.bench.clock import Contender, Timing, take_turns
from kvlab.lab.bench.rows import Aim, compare, median_rows, spread
from kvlab.lab.bench.run import PARTS, conditions, run_bench
from kvlab.lab.bench.table import as_document, as_frame, as_text

SMALL = copies.CopyCase(4, layers=2, rows=130, repetitions=2, queue=2, kv_lora_rank=8)


@pytest.mark.parametrize("dcp_size", [1, 4])
def test_ours_and_upstream_copy_the_same_rows(dcp_size: int) -> None:
    bench = copies.CopyBench(replace(SMALL, dcp_size=dcp_size))
    copies.require_equal(bench)
    chunks = bench.back_up_upstream(0)
    bench.restore_upstream(chunks, 1)
    again = torch.stack([torch.cat(layer) for layer in bench.back_up_upstream(1)])
    first = torch.stack([torch.cat(layer) for layer in chunks])
    assert torch.equal(again.view(torch.int16), first.view(torch.int16))


def test_a_contender_that_copies_other_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = copies.CopyBench(SMALL)
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(StudyError, match="what is timed must be right"):
        copies.require_equal(bench)


def test_stride_and_mask_agree_on_a_run_from_a_page() -> None:
    ids = torch.arange(64, 64 + 37)
    for rank in range(4):
        assert upstream.stride(ids, 4, rank).tolist() == upstream.mask(ids, 4, rank).tolist()


def test_contenders_take_turns_and_each_begins_once() -> None:
    order: list[str] = []

    def called(name: str) -> Contender:
        return Contender(name, lambda i: lambda: order.append(f"{name}{i}"))

    timing = take_turns([called("a"), called("b"), called("c")], repetitions=3, warmup=0)
    assert order == ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert {name: len(times) for name, times in timing.seconds.items()} == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize(
    ("repetitions", "warmup", "names"), [(0, 0, "ab"), (1, -1, "a"), (1, 0, "aa")]
)
def test_a_timing_that_says_nothing_is_refused(repetitions: int, warmup: int, names: str) -> None:
    contenders = [Contender(name, lambda i: lambda: None) for name in names]
    with pytest.raises(StudyError, match="one name for each contender"):
        take_turns(contenders, repetitions, warmup)


def test_a_ratio_is_baseline_over_ours_and_an_aim_a_least_ratio() -> None:
    timing = Timing({"ours": (1.0, 2.0, 4.0), "base": (3.0, 4.0, 4.0)}, 3, 0)
    row = compare("copy", "x", timing, "ours", "base", Aim(2.0, "at least 2x"))
    assert (row.seconds.median, row.baseline_seconds.median) == (2.0, 4.0)
    assert (row.ratio.low, row.ratio.median, row.ratio.high) == (1.5, 2.0, 2.5)
    assert row.met is True
    assert compare("copy", "x", timing, "ours", "base", Aim(2.1, "")).met is False
    assert compare("copy", "x", timing, "ours", "base").met is None
    worse = compare("copy", "x", timing, "base", "ours")
    assert median_rows([[worse], [row], [row]])[0].ratio.median == 2.0
    assert spread([5.0]).low == spread([5.0]).high == 5.0


def test_every_part_gives_whole_rows(tmp_path: Path) -> None:
    rows = run_bench(["localize"], quick=True)
    where = conditions(1)
    frame = as_frame(rows, where)
    assert len(frame) == len(rows) > 5
    assert (frame.filter(like="ratio") > 0).all(axis=None)
    assert len({row.key for row in rows}) == len(rows)
    assert all(row.ours in as_text(rows, where) for row in rows)
    assert len(json.dumps(as_document(rows, where))) > 100


@pytest.mark.parametrize(("parts", "runs"), [([], 1), (["speed"], 1), (["copy"], 0)])
def test_unknown_parts_and_no_runs_are_refused(parts: list[str], runs: int) -> None:
    with pytest.raises(StudyError, match=f"some of {', '.join(PARTS)}: got parts"):
        run_bench(parts, runs=runs)


def test_a_machine_with_too_little_memory_is_told_so_before_it_swaps() -> None:
    case = copies.FULL[0]
    with pytest.raises(StudyError, match=r"takes 7\.\d GiB, this machine has 8\.0"):
        copies.require_memory(case, 8 * 2**30)
    copies.require_memory(case, 24 * 2**30)


def test_the_command_writes_a_csv_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.csv"
    assert main(["--quick", "--only", "localize", "--json", "--csv", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(pd.read_csv(out)) == len(document["rows"])


@pytest.mark.parametrize("arguments", [["--only", "speed"], ["--repeat", "0"], ["--csv", "/"]])
def test_bad_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
