"""``kvlab owners``: the table of a run, in three forms that agree."""

import io
import json

import pandas as pd
import pytest

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
    assert [x["slot"] for x in found["positions"]] == expected["slot"].tolist()
    assert [x["raw_slot"] for x in found["positions"]] == [
        None if slot < 0 else slot for slot in expected["raw_slot"]
    ]
    assert found["lens"] == [{"rank": r, "positions": 5} for r in range(4)]
    assert (found["start"], found["length"], found["pages"]) == (1, 20, [3, 1, 2])
    assert (found["layout"]["num_pages"], sum(found["raw"].values())) == (9, 20)
    assert found["origin"]["command"].startswith("kvlab owners --dcp-size 4")
    lines = run(*words).out.splitlines()
    head = lines.index("position  slot  page  owner  row  raw           raw_slot")
    assert lines[head + 1].split()[:5] == ["1", "25", "3", "1", "6"]
    assert lines[head + 20].split()[:5] == ["20", "20", "2", "0", "5"]
    ranks = [["rank", "positions"], *([str(r), "5"] for r in range(4))]
    assert [line.split() for line in lines[head + 22 :][:5]] == ranks


def test_a_run_reaches_to_the_end_of_its_pages_and_a_pool_holds_it(run: Run) -> None:
    found = json.loads(run(*WORDS, "--json").out)
    assert (found["start"], found["length"]) == (1, 3 * 8 - 1)
    assert found["layout"]["num_pages"] == 16
    found = json.loads(run("owners", "--dcp-size", 2, "--page-size", 2, "--json").out)
    assert (found["length"], found["pages"]) == (8, [1, 2])
    found = json.loads(run("owners", "--pages", "40", "--length", 1, "--json").out)
    assert found["layout"]["num_pages"] == 40


def test_the_interleave_decides_who_stores_the_neighbors(run: Run) -> None:
    words = ["owners", "--dcp-size", 2, "--page-size", 4, "--length", 8, "--json"]
    for interleave, owners in ((1, [0, 1] * 4), (2, [0, 0, 1, 1] * 2), (4, [0] * 4 + [1] * 4)):
        found = json.loads(run(*words, "--interleave", interleave).out)
        assert [x["owner"] for x in found["positions"]] == owners


def test_a_long_run_is_cut_for_people_and_whole_in_a_file(run: Run) -> None:
    done = run("owners", "--length", 10_000)
    assert len(done.out.splitlines()) < 90
    assert "... 9,936 more rows; --csv writes all ..." in done.out
    assert len(run("owners", "--length", 10_000, "--csv", "-").out.splitlines()) == 10_001


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dcp-size", 0], "dcp_size must be at least 1"),
        (["--page-size", 4, "--interleave", 3], "interleave must divide page_size"),
        (["--pages", "1,1", "--length", 9], "need 2 different pages of 8 slots: got [1, 1]"),
        (["--pages", "1", "--start", 9], "need 2 different pages of 8 slots: got [1]"),
        (["--pages", "9", "--num-pages", 8, "--length", 1], "a page must lie in [1, 8]: got 9"),
        (["--dcp-size", 10**6, "--page-size", 1, "--length", 1], "at most 4,096 of them: got --dc"),
        (["--length", 10**12], "ends at position 10,000,000 at most"),
        (["--start", 10**12, "--length", 1], "got 1,000,000,000,001; lower --start or --length"),
    ],
)
def test_a_run_that_no_pool_holds_is_refused(words: list[object], sentence: str, run: Run) -> None:
    done = run("owners", *words, "--json")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert sentence in done.err
