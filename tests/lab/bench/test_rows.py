"""A ratio is baseline over ours; table, CSV and JSON say the same."""

from dataclasses import asdict

import pytest

from kvlab.lab.bench.clock import Timing
from kvlab.lab.bench.rows import (
    Aim,
    Conditions,
    Facts,
    Row,
    Spread,
    as_frame,
    as_text,
    compare,
    median_rows,
    seconds_text,
)
from tests.lab.bench.support import HERE

FACTS = Facts("merge", "torch", layers=1, tokens=2, ids=3, dcp_size=4, bytes=5)


def row_of(timing: Timing, ours: str, base: str, aim: float | None = None) -> Row:
    given = None if aim is None else Aim(aim, "")
    (row,) = compare("copy", "x", timing, [(ours, base, given)], FACTS, "copy")
    return row


def test_a_ratio_is_taken_repetition_by_repetition_and_an_aim_is_a_least_ratio() -> None:
    times = {"ours": (1.0, 2.0, 4.0), "base": (3.0, 4.0, 4.0), "copy": (0.5, 0.5, 3.0)}
    timing = Timing(times, 3, 0)
    row = row_of(timing, "ours", "base", 2.0)
    assert (row.seconds.median, row.baseline_seconds.median) == (2.0, 4.0)
    assert row.ratio == Spread(1.5, 2.0, 2.5)
    assert row.share_of_copy == 0.5
    assert row.met == "yes"
    assert row_of(timing, "ours", "base", 2.1).met == "no"
    assert row_of(timing, "ours", "base").met is None
    worse = row_of(timing, "base", "ours")
    assert median_rows([[worse], [row], [row]])[0].ratio.median == 2.0
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0)


def test_the_table_the_csv_and_json_say_the_same() -> None:
    timing = Timing({"ours": (2e-5, 2e-5), "base": (1e-5, 1e-5), "copy": (1e-5, 1e-5)}, 2, 1)
    rows = [row_of(timing, "ours", "base", 1 / 1.3)]
    where = Conditions.now(HERE, 3)
    text = as_text(rows, where)
    assert text.splitlines()[0] == where.sentence()
    (line,) = (line.split() for line in text.splitlines() if "ours / base" in line)
    assert line[3:7] == ["20", "us", "10", "us"]
    assert line[7:] == ["0.5", "(0.5-0.5)", ">=0.769", "no", "50%", "2", "after", "1"]
    (record,) = as_frame(rows, where).to_dict("records")
    want = {"ours_s": 2e-5, "baseline_s": 1e-5, "ratio": 0.5, "aim": 0.769, "met": "no", "runs": 3}
    assert {name: record[name] for name in want} == want
    assert {name: record[name] for name in asdict(FACTS)} == asdict(FACTS)
    left_out = ["left out: copy, huge: it takes more"]
    assert as_text(rows, where, left_out).endswith("\n\nleft out: copy, huge: it takes more")


def test_whole_numbers_stay_whole_beside_empty_fields() -> None:
    timing = Timing({"a": (1.0,), "b": (1.0,)}, 1, 0)
    rows = [
        *compare("merge", "x", timing, [("a", "b", None)], FACTS),
        *compare("decode", "x", timing, [("a", "b", None)]),
    ]
    frame = as_frame(rows, Conditions.now(HERE, 1))
    lines = frame[["op", "layers", "bytes", "share_of_copy"]].to_csv(index=False).splitlines()
    assert lines == ["op,layers,bytes,share_of_copy", "merge,1,5,", ",,,"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7.05, "7.05 s"), (0.0264, "26.4 ms"), (54.1e-6, "54.1 us"), (3e-9, "3 ns"), (90, "90 s")],
)
def test_times_are_shown_with_a_unit_of_their_size(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
