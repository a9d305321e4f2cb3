"""The recorded figures are of today's cases and columns."""

from pathlib import Path

import pandas as pd
import pytest

from kvlab.lab.bench import copies, decode, localize, merge, requests, writes
from kvlab.lab.bench.clock import Timing
from kvlab.lab.bench.rows import compare
from kvlab.lab.bench.run import PARTS, conditions
from kvlab.lab.bench.table import as_frame
from tests.lab.bench.support import require_whole, tiny_rows

RUNS = Path(__file__).resolve().parents[3] / "data" / "runs"
FILES = sorted(path.name for path in RUNS.glob("bench-*.csv"))
CASES = {
    "localize": [case.name for case in localize.FULL],
    "copy": [*(case.name for case in copies.FULL), *(case.name for case in requests.FULL)],
    "merge": [case.name for case in merge.FULL],
    "owner_write": [case.name for case in writes.FULL],
    "decode": [case.name for case in decode.FULL],
}


@pytest.mark.parametrize("part", PARTS)
def test_each_part_gives_whole_rows(part: str) -> None:
    rows = tiny_rows(part)
    require_whole(rows)
    assert {row.part for row in rows} == {part}


def test_no_two_cases_of_a_part_have_one_name() -> None:
    assert all(len(set(names)) == len(names) for names in CASES.values())


def test_the_sizes_of_the_aims_have_aims_and_quick_copies_have_none() -> None:
    assert {(c.layers, c.rows, c.aimed) for c in copies.FULL} == {(27, 16_384, True)}
    assert not any(case.aimed for case in (*copies.QUICK, *decode.QUICK))
    assert [(c.requests, c.dcp_sizes) for c in decode.FULL if c.aimed] == [(16, (1, 2, 4, 8))]


@pytest.mark.parametrize("file", FILES)
def test_the_recorded_figures_are_of_the_cases_and_columns_of_today(file: str) -> None:
    recorded = pd.read_csv(RUNS / file, dtype={"commit": str})
    row = compare("localize", "x", Timing({"a": (1.0,), "b": (1.0,)}, 1, 0), "a", "b")
    assert recorded.columns.tolist() == as_frame([row], conditions(1)).columns.tolist()
    assert set(recorded.part) <= set(PARTS)
    for part, names in CASES.items():
        assert set(recorded[recorded.part == part].case) <= set(names)
    key = ["part", "case", "ours", "baseline", "threads"]
    assert not recorded.duplicated(key).any()
    aimed = recorded.dropna(subset="aim")
    assert ((aimed.ratio >= aimed.aim) == (aimed.met == "yes")).all()
    assert recorded.met.isna().equals(recorded.aim.isna())


def test_the_machine_of_two_cores_is_recorded_with_every_part() -> None:
    recorded = pd.read_csv(RUNS / "bench-cpu.csv")
    assert {"localize", "copy", "scheduler", "decode"} <= set(recorded.part)
    assert set(recorded.device) == {"cpu (2 cores)"}
