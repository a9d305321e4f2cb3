"""The clock is fair, the table says what was timed, each part times what is right."""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import kvlab
from kvlab.engine.model import ShardedModel
from kvlab.engine.workload import generate_closed_loop, save_csv
from kvlab.errors import StudyError
from kvlab.lab.bench import __main__ as program
from kvlab.lab.bench import copies, engine, ops
from kvlab.lab.bench.__main__ import PARTS, main
from kvlab.lab.bench.clock import (
    Contender,
    Effort,
    Place,
    Timing,
    open_place,
    rotate_inputs,
    take_turns,
)
from kvlab.lab.bench.table import (
    Case,
    Row,
    as_frame,
    as_text,
    compare,
    conditions,
    median_rows,
    seconds_text,
)
from kvlab.memory import HostArena
from tests.ops.support import needs_interpreter

RUNS = Path(__file__).resolve().parents[3] / "data" / "runs"
#: This CPU as if its cache held 16 KiB, so that few inputs are gone through.
HERE = replace(open_place("cpu"), cache_bytes=2**14)
BOTH = replace(HERE, backends=("torch", "triton"))
BRIEF = Effort.exactly(2, 1)
FEW_TOKENS = copies.Sizes(2, 520, 4, kv_lora_rank=8)
FEW_STEPS = engine.decode_case(2, 5, Effort.exactly(2, 0), steps=2, dcp_sizes=(1, 3))
TINY = [
    ops.localize_case(1000, 4, BRIEF),
    copies.copy_case(FEW_TOKENS, BRIEF),
    ops.merge_case("tiny", 3, 2, 4, 8, BRIEF),
    ops.write_case(64, 4, False, BRIEF),
    engine.sweep_case(20, 2),
    engine.growth_case((5, 10, 20), 2),
    engine.twin_case(8, 2),
    FEW_STEPS,
]


def test_contenders_take_turns_and_nobody_pays_for_another() -> None:
    order: list[str] = []

    def called(name: str) -> Contender:
        def prepare(i: int) -> Callable[[], object]:
            order.append("prepare")
            return lambda: order.append(f"{name}{i}")

        return Contender(name, prepare, lambda _: order.append("finish"))

    take_turns(list(map(called, "abc")), Effort.exactly(3, 0), lambda: order.append("wait"))
    calls = ["a0", "b0", "c0", "b1", "c1", "a1", "c2", "a2", "b2"]
    assert order == [word for call in calls for word in ("prepare", "wait", call, "wait", "finish")]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.0, 3), (12.6, 5), (1000.0, 7)])
def test_a_budget_buys_whole_rounds_within_its_bounds(
    monkeypatch: pytest.MonkeyPatch, seconds: float, repetitions: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)) / 2)  # a round takes 2.5 s
    made = [Contender(name, lambda i: lambda: None, calls=2) for name in "ab"]
    timing = take_turns(made, Effort(seconds, least=3, most=7, warmup=2))
    assert (timing.repetitions, timing.warmup) == (repetitions, 2)
    assert timing.seconds["a"].tolist() == [0.25] * repetitions  # of one piece of two


@pytest.mark.parametrize("contenders", [1, 4, 11])
@pytest.mark.parametrize("inputs", [12, 17, 160])
def test_no_input_comes_again_before_all_others_had_their_turn(
    inputs: int, contenders: int
) -> None:
    seen: list[int] = []
    ways = {str(i): seen.append for i in range(contenders)}
    made = rotate_inputs(range(inputs), ways)
    for i in range(48):
        seen.clear()
        for contender in made:
            contender.prepare(i)()
        assert len(seen) == contenders * made[0].calls
        assert len(set(seen)) == min(len(seen), inputs)
    seen.clear()
    for i in range(2 * inputs):
        made[0].prepare(i)()
    if inputs % contenders:  # else a contender alternates between few
        assert set(seen) == set(range(inputs))


def test_inputs_exceed_the_cache_twice_and_needs_stay_within_the_memory() -> None:
    place = replace(HERE, cache_bytes=1000, host_bytes=8 * 2**30)
    assert [place.sets(n) for n in (100, 300, 5000)] == [20, 7, 2]
    assert place.lacks(3 * 2**30, 3 * 2**30) is None
    assert "takes 7.00 GiB of memory" in str(place.lacks(3 * 2**30, 4 * 2**30))
    there = replace(place, device=torch.device("cuda", 0), device_bytes=4 * 2**30)
    assert there.lacks(6 * 2**30, 3 * 2**30) is None
    assert "takes 4.00 GiB of device memory" in str(there.lacks(0, 4 * 2**30))
    (huge,) = [copies.copy_case(sizes) for sizes in copies.SIZES[-4:-3]]
    told = huge.measure(replace(HERE, host_bytes=2 * 2**30))
    assert str(told).startswith("left out: copy, 61 layers x 64k tokens x 576 bf16, c=1: a timing")
    for device in ("tpu", "cuda:", "cpu:0", "cuda:99"):
        with pytest.raises(StudyError, match=r"a benchmark (runs on 'cpu'|needs the device)"):
            open_place(device)


def test_a_ratio_is_taken_repetition_by_repetition_and_table_csv_and_json_agree() -> None:
    times = {"ours": [1.0, 2.0, 4.0], "base": [3.0, 4.0, 4.0], "copy": [0.5, 0.5, 3.0]}
    timing = Timing({name: np.array(seconds) for name, seconds in times.items()}, 3, 1)

    def row_of(ours: str, base: str, aim: float | None = None) -> Row:
        facts = {"op": "merge", "layers": 1, "bytes": 5}
        return compare("copy", "x", timing, [(ours, base, aim)], facts, "copy")[0]

    row = row_of("ours", "base", 2.0)
    want = {"ours_s": 2.0, "baseline_s": 4.0, "ratio_q1": 1.5, "ratio": 2.0, "ratio_q3": 2.5}
    assert {name: row[name] for name in want} == want
    assert (row["share_of_copy"], row["met"]) == (0.5, "yes")
    assert row_of("ours", "base", 2.1)["met"] == "no"
    assert row_of("ours", "base")["met"] is None
    assert median_rows([[row_of("base", "ours")], [row], [row]])[0]["ratio"] == 2.0
    plain = compare("decode", "x", timing, [("ours", "base", None)])
    where = conditions(HERE, 3)
    frame = as_frame([row, *plain], where)
    lines = frame[["op", "layers", "bytes", "aim"]].to_csv(index=False).splitlines()
    assert lines == ["op,layers,bytes,aim", "merge,1,5,2.0", ",,,"]  # whole numbers stay whole
    text = as_text([row], where, ["left out: copy, huge"])
    assert "copy: x" in text and text.endswith("\n\nleft out: copy, huge")
    (line,) = (line.split() for line in text.splitlines() if "ours / base " in line)
    assert line[3:] == [
        "2",
        "s",
        "4",
        "s",
        "2",
        "(1.5-2.5)",
        ">=2",
        "yes",
        "50%",
        *["3", "after", "1"],
    ]
    times_told = [seconds_text(s) for s in (7.05, 0.0264, 54.1e-6, 3e-9, 90)]
    assert times_told == ["7.05 s", "26.4 ms", "54.1 us", "3 ns", "90 s"]


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_each_case_gives_whole_rows(case: Case) -> None:
    rows = case.rows(HERE)
    assert len({(row["case"], row["ours"], row["baseline"]) for row in rows}) == len(rows) > 0
    for row in rows:
        assert row["part"] == case.part
        for name in ("ours_s", "baseline_s", "ratio"):
            assert 0 < row[f"{name}_q1"] <= row[name] <= row[f"{name}_q3"]
        assert row["baseline"] != "copy" or row["share_of_copy"] == row["ratio"]
        if case.part in ("localize", "owner_write") and row["bytes"]:
            assert row["bytes"] == {"localize": 5000, "owner_write": 18_688}[case.part]
    assert aims(rows) == (
        {(ops.POOL, ops.EAGER): 0.769} if case.part == "owner_write" else {}
    )  # the others are of other sizes


def aims(rows: list[Row]) -> dict[tuple[str, str], float]:
    return {(row["ours"], row["baseline"]): row["aim"] for row in rows if row["aim"] is not None}


def test_the_aimed_sizes_have_the_aims_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    aimed = ops.localize_case(100, 4, BRIEF, aimed="cpu")
    assert aims(aimed.rows(HERE)) == {
        ("localize, first rank", "mask"): 5.0,
        ("checked stride", "mask"): 5.0,
        ("localize, read from the table", "unchecked stride"): 0.909,
    }
    detailed = copies.copy_case(FEW_TOKENS, BRIEF, aimed=True)
    assert aims(detailed.rows(HERE)) == {(a, b): aim for a, b, aim in copies.CPU_AIMS}
    monkeypatch.setattr(Place, "on_cpu", False)
    monkeypatch.setattr(copies, "HostArena", lambda pinned: HostArena())
    assert set(aims(detailed.rows(HERE)).values()) == {5.0, 0.85}
    assert aims(aimed.rows(HERE)) == {("localize_run, torch", "copy"): 0.909}
    assert aims(TINY[2].rows(HERE)) == {("merge_stacked, torch", "copy"): 0.8}


def test_steps_share_no_slot_and_each_has_as_many_of_every_rank() -> None:
    for ids, paged in ((64, False), (512, True)):
        _, works = ops.make_steps(ids, 4, paged, 3, HERE, 3)
        slots = torch.cat([work.inputs["ids"] for work in works])
        assert len(set(slots.tolist())) == len(slots) == 3 * ids
        for work in works:
            assert torch.bincount(work.inputs["ids"] % 4).tolist() == [ids // 4] * 4


@needs_interpreter
@pytest.mark.parametrize("case", [TINY[0], TINY[2], TINY[3]], ids=lambda case: case.part)
def test_what_gives_something_else_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    spec = ops.SPEC[ops.OPS[case.part]]

    def worse(*args: Any, backend: str, **given: Any) -> Any:
        if backend == "triton" and case.part == "owner_write":
            given["first_slot"] = given["slot_end"]  # all is padding
        elif backend == "triton":
            given = {k: v[1:] if k in ("ids", "out", "lse") else v for k, v in given.items()}
        return spec.op(*args, backend="torch", **given)

    monkeypatch.setitem(ops.SPEC, spec.name, replace(spec, op=worse))
    with pytest.raises(StudyError, match=r"'.*, triton' does not give what .* gives \(.*\); do no"):
        case.rows(BOTH)


def test_other_rows_and_other_logits_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies.CopyBench, "_stride", lambda self, ids: ids[3::4].flip(0) // 4)
    with pytest.raises(StudyError, match="\"upstream's loop\" does not give what 'backup' gives"):
        TINY[1].rows(HERE)
    decode = ShardedModel.decode
    monkeypatch.setattr(ShardedModel, "decode", lambda *given: decode(*given) + 1e-3)
    with pytest.raises(StudyError, match=r"'decode, c=1' does not give what \"the library's deco"):
        FEW_STEPS.rows(HERE)


@pytest.mark.parametrize("detailed", [False, True])
def test_what_is_kept_of_backups_keeps_its_length(detailed: bool) -> None:
    place = replace(HERE, cache_bytes=2 * FEW_TOKENS.nbytes)
    bench = copies.CopyBench(FEW_TOKENS, place, detailed)
    assert (bench.count, bench.kept) == (4, 4)
    for contender in (*bench.backups(), *bench.restores()):
        for i in range(6):
            contender.finish(contender.prepare(i)())
    # Three of each kind of backup, and what is made beforehand for each kind of restore.
    lent = (bench.kept - 1) * (6 if detailed else 4) * bench.pool.host.grain
    assert bench.pool.host.lent_bytes == lent
    assert bench.pool.host.audit() == []


def test_the_sweep_takes_the_trace_of_the_named_folder_or_the_shipped_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_TRACES", str(tmp_path))
    assert TINY[4].rows(HERE)[0]["case"] == "20 runs of default, 20 requests"
    save_csv(generate_closed_loop(30, seed=1, name="mine"), tmp_path / engine.TRACE)
    (row,) = TINY[4].rows(HERE)
    assert row["case"] == "20 runs of mine, 20 requests"
    assert row["note"].endswith("M decode tokens/s")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, in which every part is one case that takes no time."""
    timing = Timing({"a": np.ones(2), "b": np.ones(2)}, 2, 0)

    def tiny(parts: list[str], quick: bool) -> list[Case]:
        def rows(part: str) -> Callable[[Place], list[Row]]:
            return lambda _: compare(part, "x", timing, [("a", "b", None)])

        huge = Case("merge", "huge", rows("merge"), lambda _: (2**50, 0))
        return [*(Case(part, "x", rows(part)) for part in parts), *([huge] if quick else [])]

    monkeypatch.setattr(program, "cases", tiny)
    folder = tmp_path / "data" / "runs"
    folder.mkdir(parents=True)
    monkeypatch.setattr(kvlab, "__file__", str(tmp_path / "kvlab" / "__init__.py"))
    return folder


def test_a_whole_run_is_recorded_under_the_name_of_its_device_and_less_is_printed(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for less in (["--quick"], ["--only", "merge"], []):
        assert main(["--record", *less]) == 0
        assert [file.name for file in checkout.iterdir()] == ([] if less else ["bench-cpu.csv"])
        said = capsys.readouterr()
        assert ("left out: merge, huge: a timing must not swap" in said.out) == (
            less == ["--quick"]
        )
        assert "merge: x" in said.out
    assert pd.read_csv(checkout / "bench-cpu.csv").part.tolist() == list(PARTS)
    assert "written: bench-cpu.csv" in said.err


def test_json_and_csv_have_the_same_rows_and_threads_are_put_back(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, threads = checkout / "x.csv", torch.get_num_threads()
    words = ["--only", "copy", "--only", "localize", "--json", "--csv", str(out), "--repeat", "3"]
    assert main([*words, "--threads", "1"]) == 0
    assert torch.get_num_threads() == threads
    document, written = json.loads(capsys.readouterr().out), pd.read_csv(out)
    assert [row["part"] for row in document["rows"]] == written.part.tolist()
    assert written.part.tolist() == ["localize", "copy"]
    assert (written.runs == 3).all() and (written.threads == 1).all()


def test_lines_of_other_threads_and_parts_are_kept_when_asked_for(checkout: Path) -> None:
    def lines(*words: str) -> list[tuple[str, int]]:
        assert main(["--record", *words]) == 0
        found = pd.read_csv(checkout / "bench-cpu.csv")
        return sorted(zip(found.part, found.threads, strict=True))

    for part in ("merge", "localize", "merge"):
        found = lines("--join", "--threads", "1", "--only", part)
    assert found == [("localize", 1), ("merge", 1)]
    found = lines("--keep", "--join", "--threads", "2", "--only", "merge")
    assert found == [("localize", 1), ("merge", 1), ("merge", 2)]
    found = lines("--join", "--threads", "2", "--only", "merge")
    assert found == [("localize", 1), ("merge", 2)]
    assert len(lines("--keep", "--threads", "1")) == len(PARTS) + 1


def test_what_cannot_be_written_or_measured_is_a_sentence(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(words: str, *arguments: str, code: int = 1) -> None:
        assert main(list(arguments)) == code
        assert words in capsys.readouterr().err

    for arguments in (["--join"], ["--keep"], ["--record", "--quick", "--join"]):
        fails("keep lines of a file that is written, and this run writes none", *arguments)
    old = checkout / "bench-cpu.csv"
    old.write_text("part,threads\ncopy,1\n")
    fails("'bench-cpu.csv' has 2 columns, a run has", "--record", "--keep")
    assert old.read_text() == "part,threads\ncopy,1\n"
    for arguments, words in (
        (["--only", "speed"], "invalid choice: 'speed'"),
        (["--repeat", "0"], "must be a whole number of at least 1: got '0'"),
        (["--csv", "no_such_folder/x.csv"], "OUT is a file in a folder that exists: got"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2 and words in capsys.readouterr().err

    def interrupted(*_: object) -> list[Case]:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run_bench", interrupted)
    fails("interrupted; nothing was written", code=130)
    monkeypatch.setattr(kvlab, "__file__", str(checkout / "kvlab" / "__init__.py"))
    fails("a benchmark is recorded in data/runs of the checkout", "--record")


@pytest.mark.parametrize("file", sorted(path.name for path in RUNS.glob("bench-*.csv")))
def test_the_recorded_figures_are_of_the_parts_and_columns_of_today(file: str) -> None:
    recorded = pd.read_csv(RUNS / file, dtype={"commit": str})
    columns = as_frame(TINY[2].rows(HERE), conditions(HERE, 1)).columns
    assert recorded.columns.tolist() == columns.tolist()
    assert set(recorded.part) <= set(PARTS)
    assert not recorded.duplicated(["part", "case", "ours", "baseline", "threads"]).any()
    aimed = recorded.dropna(subset="aim")
    assert ((aimed.ratio >= aimed.aim) == (aimed.met == "yes")).all()
