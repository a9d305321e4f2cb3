"""The benchmark times what is right: every pair gives equal results, and each row is whole."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from kvlab.engine.workload import generate_closed_loop, save_csv
from kvlab.errors import StudyError
from kvlab.index import WidenedSlots
from kvlab.lab.bench import __main__ as program
from kvlab.lab.bench import copies, decode, localize, scheduler, upstream
from kvlab.lab.bench.__main__ import main
from kvlab.lab.bench.clock import Contender, Timing, take_turns
from kvlab.lab.bench.rows import Aim, Row, compare, median_rows, spread
from kvlab.lab.bench.run import PARTS, conditions, run_bench
from kvlab.lab.bench.table import as_document, as_frame, as_record, as_text, seconds_text

SMALL = copies.CopyCase(4, layers=2, rows=130, repetitions=2, queue=2, kv_lora_rank=8)
FEW_IDS = localize.LocalizeCase(1000, 4, runs=2, repetitions=2, warmup=0)
FEW_STEPS = decode.DecodeCase(2, 5, repetitions=2, warmup=0, steps=2, dcp_sizes=(1, 3))
FEW_REQUESTS = scheduler.SchedulerCase(20, 2, (5, 10, 20), 2, 8, 2)


def require_whole(rows: list[Row]) -> None:
    """Every row names its two sides and has times, a ratio that fits them, and its repetitions."""
    assert rows
    assert len({row.key for row in rows}) == len(rows)
    for row in rows:
        assert all(row.key)
        for part in (row.seconds, row.baseline_seconds, row.ratio):
            assert 0 < part.low <= part.median <= part.high
        assert row.repetitions >= 1
        record = as_record(row)
        assert (record["aim"] is None) == (record["met"] is None)
        assert {"ours_s_q1", "ours_s", "ours_s_q3", "baseline_s", "ratio", "warmup"} <= set(record)


@pytest.mark.parametrize(("ids", "c"), [(1000, 1), (1000, 2), (1000, 3), (999, 4), (5, 8)])
def test_all_ways_to_localize_give_the_rows_of_the_mask(ids: int, c: int) -> None:
    case = replace(FEW_IDS, ids=ids, dcp_size=c)
    run = localize.make_runs(case)[1]
    assert len(run) == ids
    verified = WidenedSlots(run)
    for name, way in localize.ways(case).items():
        found = way(run, verified)
        ranks = range(c) if name in (localize.ALL, localize.STRIDES) else [case.rank]
        for rank, rows in zip(ranks, found, strict=True):
            assert rows.tolist() == [i // c for i in run.tolist() if i % c == rank], name


def test_a_way_to_localize_that_gives_other_rows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(
        StudyError, match=r"rows of 'unchecked stride' for rank 3 \(1000 ids, c=4\)"
    ):
        localize.rows_of(FEW_IDS)


def test_each_part_gives_whole_rows() -> None:
    require_whole(localize.rows_of(FEW_IDS))
    require_whole(copies.rows_of(SMALL))
    require_whole(decode.rows_of(FEW_STEPS))
    require_whole(scheduler.growth_rows(FEW_REQUESTS))
    require_whole([scheduler.twin_row(FEW_REQUESTS), scheduler.sweep_row(FEW_REQUESTS, None)])


def test_the_sizes_of_the_aims_have_aims_and_quick_copies_have_none() -> None:
    assert [case.dcp_size for case in localize.FULL if case.aimed] == [8]
    assert {(c.layers, c.rows, c.aimed) for c in copies.FULL} == {(27, 16_384, True)}
    assert not any(case.aimed for case in (*copies.QUICK, *decode.QUICK))
    assert [(c.requests, c.dcp_sizes) for c in decode.FULL if c.aimed] == [(16, (1, 2, 4, 8))]


def test_twins_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "simulate", lambda workload, node: None)
    with pytest.raises(StudyError, match="the step and the event scheduler differ on 8 requests"):
        scheduler.twin_row(FEW_REQUESTS)


def test_a_decode_step_is_timed_at_each_dcp_size_and_says_how_many_a_second() -> None:
    rows = decode.rows_of(replace(FEW_STEPS, aimed=True, dcp_sizes=(1, 2, 8)))
    ours = ["decode, c=1", "decode, c=2", "decode, c=8", "decode, c=1, keys expanded"]
    assert [row.ours for row in rows] == ours
    assert {row.baseline for row in rows} == {decode.LIBRARY}
    ratios = [None if row.aim is None else round(row.aim.ratio, 3) for row in rows]
    assert ratios == [0.833, None, 0.4, None]
    for row in rows:
        assert row.note == f"{1 / row.seconds.median:.0f} steps/s"
        assert row.case == "2 requests of 5 to 10 tokens"


def test_an_engine_that_says_something_else_than_the_library_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = decode.Sharded.step
    monkeypatch.setattr(decode.Sharded, "step", lambda self: step(self) + 1e-3)
    with pytest.raises(StudyError, match=r"the logits of 'decode, c=1' are 0\.001 from the libra"):
        decode.rows_of(FEW_STEPS)


def test_the_sweep_takes_the_trace_of_the_named_folder_or_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_TRACES", str(tmp_path))
    assert scheduler.find_trace() is None
    assert scheduler.sweep_study(FEW_REQUESTS, None).workload.name == "default"
    save_csv(generate_closed_loop(30, seed=1, name="mine"), tmp_path / scheduler.TRACE)
    study = scheduler.sweep_study(FEW_REQUESTS, scheduler.find_trace())
    assert (study.workload.name, len(study.workload), len(study.points())) == ("mine", 20, 20)


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


def test_nothing_is_copied_for_a_row_before_the_copies_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: ids[r::c] // c + 1)
    with pytest.raises(StudyError, match="ours and upstream's loop copy different rows"):
        copies.rows_of(SMALL)


def test_the_queue_of_backups_keeps_its_length() -> None:
    bench = copies.CopyBench(SMALL)
    ours, *_ = bench.backups()
    for i in range(6):
        ours.finish(ours.prepare(i)())
    assert bench.arena.lent_bytes == SMALL.queue * bench.arena.grain
    assert bench.arena.idle_bytes == bench.arena.grain


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


def test_times_are_of_one_piece_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # a call takes 1 s
    assert {row.seconds.median for row in localize.rows_of(FEW_IDS)} == {1 / FEW_IDS.runs}
    growth = scheduler.growth_rows(FEW_REQUESTS)
    assert [row.seconds.median for row in growth] == [1 / n for n in FEW_REQUESTS.sizes[1:]]
    assert [row.baseline_seconds.median for row in growth] == [1 / n for n in (5, 10)]


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


def test_the_table_the_csv_and_json_say_the_same(tmp_path: Path) -> None:
    timing = Timing({"ours": (2e-5, 2e-5), "base": (1e-5, 1e-5)}, 2, 1)
    rows = [compare("localize", "x", timing, "ours", "base", Aim(1 / 1.3, ""), note="n")]
    where = conditions(3)
    text = as_text(rows, where)
    assert text.splitlines()[0] == where.sentence()
    assert f"{where.threads} torch thread" in text
    assert where.device in text
    (line,) = (line.split() for line in text.splitlines() if "ours / base" in line)
    assert line[3:7] == ["20", "us", "10", "us"]
    assert line[7:] == ["0.5", "(0.5-0.5)", ">=0.769", "no", "2", "after", "1;", "n"]
    (record,) = as_frame(rows, where).to_dict("records")
    want = {"ours_s": 2e-5, "baseline_s": 1e-5, "ratio": 0.5, "aim": 0.769, "met": "no", "runs": 3}
    assert {name: record[name] for name in want} == want
    document = json.loads(json.dumps(as_document(rows, where)))
    assert document["rows"][0]["ratio"] == 0.5
    assert document["conditions"]["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7.05, "7.05 s"),
        (0.0264, "26.4 ms"),
        (54.1e-6, "54.1 us"),
        (3e-9, "3 ns"),
        (90, "90 s"),
        (1, "1 s"),
    ],
)
def test_times_are_shown_with_a_unit_of_their_size(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(("parts", "runs"), [([], 1), (["speed"], 1), (["copy"], 0)])
def test_unknown_parts_and_no_runs_are_refused(parts: list[str], runs: int) -> None:
    with pytest.raises(StudyError, match=f"some of {', '.join(PARTS)}: got parts"):
        run_bench(parts, runs=runs)


def test_a_machine_with_too_little_memory_is_told_so_before_it_swaps() -> None:
    case = copies.FULL[0]
    with pytest.raises(StudyError, match=r"takes 7\.\d GiB, this machine has 8\.0"):
        copies.require_memory(case, 8 * 2**30)
    copies.require_memory(case, 24 * 2**30)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is one tiny case."""
    monkeypatch.setitem(PARTS, "localize", lambda quick: iter([localize.rows_of(FEW_IDS)]))
    monkeypatch.setitem(PARTS, "copy", lambda quick: iter([copies.rows_of(SMALL)]))
    twin = scheduler.twin_row
    monkeypatch.setitem(PARTS, "decode", lambda quick: iter([decode.rows_of(FEW_STEPS)]))
    monkeypatch.setitem(PARTS, "scheduler", lambda quick: iter([[twin(FEW_REQUESTS)]]))


@pytest.mark.usefixtures("small_parts")
def test_the_command_writes_a_csv_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.csv"
    arguments = ["--quick", "--only", "copy", "--only", "localize", "--json", "--csv", str(out)]
    threads = torch.get_num_threads()
    assert main([*arguments, "--repeat", "3", "--threads", "1"]) == 0
    assert torch.get_num_threads() == threads
    said = capsys.readouterr()
    document = json.loads(said.out)
    written = pd.read_csv(out)
    assert written.part.tolist() == [row["part"] for row in document["rows"]]
    assert written.part.unique().tolist() == ["copy", "localize"]
    assert set(written.threads) == {1}
    assert set(written.runs) == {3}
    assert "run 3 of 3: localize" in said.err
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("small_parts")
def test_without_options_the_command_prints_the_table_of_all_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{part} " in text for part in PARTS)


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_cannot_be_written_is_a_sentence_and_exit_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert main(["--only", "localize", "--csv", str(tmp_path / "bench.csv")]) == 1
    assert "gives No space left on device; name another file with --csv" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> list[Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run_bench", interrupted)
    assert main([]) == 130
    assert "interrupted; nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--only", "speed"], ["--repeat", "0"], ["--repeat", "x"], ["--threads", "0"]),
        *(["--csv", "/"], ["--csv", ""], ["--csv", "no_such_folder/x.csv"]),
    ],
)
def test_bad_usage_exits_with_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    expected = {
        "--only": "invalid choice: 'speed'",
        "--csv": "OUT is a file in a folder that exists: got",
    }.get(arguments[0], "must be a whole number of at least 1: got")
    assert expected in capsys.readouterr().err


def test_the_recorded_figures_are_of_the_cases_and_columns_of_today() -> None:
    path = Path(__file__).resolve().parents[2] / "data" / "runs" / "bench-cpu.csv"
    recorded = pd.read_csv(path, dtype={"commit": str})
    assert recorded.columns.tolist() == as_frame([twin_like()], conditions(1)).columns.tolist()
    for part, cases in (("localize", localize.FULL), ("copy", copies.FULL)):
        assert set(recorded[recorded.part == part].case) == {case.name for case in cases}
    steps = recorded[recorded.part == "decode"]
    assert set(steps.case) == {case.name for case in decode.FULL}
    assert set(recorded.part) <= set(PARTS)
    others = recorded[recorded.part != "decode"]
    assert others.groupby("threads").size().to_dict() == {1: 54, 2: 58}
    aimed = recorded.dropna(subset="aim")
    assert ((aimed.ratio >= aimed.aim) == (aimed.met == "yes")).all()
    assert recorded.met.isna().equals(recorded.aim.isna())


def twin_like() -> Row:
    """Any row: its columns are what counts."""
    return compare("localize", "x", Timing({"a": (1.0,), "b": (1.0,)}, 1, 0), "a", "b")
