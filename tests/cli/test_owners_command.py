"""``kvlab owners``: the table of a run, in three forms that agree."""

import io
import json

import pandas as pd

from kvlab.index import DcpLayout
from kvlab.lab.owners import OwnerStudy
from tests.cli.conftest import Run

WORDS = ["owners", "--dcp-size", 4, "--page-size", 2, "--pages", "3,1,2", "--start", 1]


def test_the_three_forms_hold_the_table_of_the_study(run: Run) -> None:
    words = [*WORDS, "--length", 20, "--num-pages", 9]
    expected = OwnerStudy(DcpLayout(4, 2, 9), 20, 1, (3, 1, 2)).table()
    table = pd.read_csv(io.StringIO(run(*words, "--csv", "-").out))
    table["raw_slot"] = table["raw_slot"].fillna(-1).astype(int)
    pd.testing.assert_frame_equal(table, expected)
    found = json.loads(run(*words, "--json").out)
    positions = pd.DataFrame(found["positions"]).fillna({"raw_slot": -1})
    pd.testing.assert_frame_equal(positions, expected, check_dtype=False)
    assert found["lens"] == [{"rank": r, "positions": 5} for r in range(4)]
    assert (found["start"], found["length"], found["pages"]) == (1, 20, [3, 1, 2])
    assert (found["layout"]["num_pages"], sum(found["raw"].values())) == (9, 20)
    assert found["origin"]["command"].startswith("kvlab owners --dcp-size 4")
    lines = [line.split() for line in run(*words).out.splitlines()]
    head = lines.index(["position", "slot", "page", "owner", "row", "raw", "raw_slot"])
    assert lines[head + 1][:5] == ["1", "25", "3", "1", "6"]
    assert lines[head + 20][:5] == ["20", "20", "2", "0", "5"]


def test_a_run_reaches_to_the_end_of_its_pages_and_a_pool_holds_it(run: Run) -> None:
    def found(*words: object) -> tuple[int, int, int]:
        told = json.loads(run(*words, "--json").out)
        return told["start"], told["length"], told["layout"]["num_pages"]

    assert found(*WORDS) == (1, 3 * 8 - 1, 16)
    assert found("owners", "--dcp-size", 2, "--page-size", 2) == (0, 8, 16)
    assert found("owners", "--pages", "40", "--length", 1) == (0, 1, 40)


def test_the_interleave_decides_who_stores_the_neighbors(run: Run) -> None:
    words = ["owners", "--dcp-size", 2, "--page-size", 4, "--length", 8, "--interleave", 2]
    found = json.loads(run(*words, "--json").out)
    assert [x["owner"] for x in found["positions"]] == [0, 0, 1, 1] * 2


def test_a_long_run_is_cut_for_people_and_whole_in_a_file(run: Run) -> None:
    done = run("owners", "--length", 1000)
    assert len(done.out.splitlines()) < 90
    assert "... 936 more rows; --csv writes all ..." in done.out
    assert len(run("owners", "--length", 1000, "--csv", "-").out.splitlines()) == 1001
