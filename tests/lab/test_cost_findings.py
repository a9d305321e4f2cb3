"""Sentences about costs have the numbers of the rows, and what was not measured has no sentence."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvlab.lab.bench import localize, merge
from kvlab.lab.cost import read_costs
from kvlab.lab.cost_findings import (
    Range,
    aim_finding,
    copy_finding,
    localize_finding,
    share_finding,
)
from kvlab.lab.findings import Finding, record
from tests.lab import cost_rows

FINDINGS = (localize_finding, copy_finding, share_finding, aim_finding)
Find = Callable[[pd.DataFrame, str], Finding | None]


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    cost_rows.record(tmp_path)
    return read_costs(tmp_path).of("cpu")


def said(find: Find, rows: pd.DataFrame) -> str:
    found = find(rows, "cpu")
    assert found is not None
    return found.text


@pytest.mark.parametrize("find", FINDINGS)
def test_a_finding_can_be_recorded_and_names_the_device(
    find: Find, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path / "figures"))
    found = find(rows, "cpu")
    assert found is not None
    assert record(found.name, found.sentence, found.values) == found.text
    assert found.text.startswith("Measured on cpu")
    assert found.name.endswith("-cpu")


@pytest.mark.parametrize("find", FINDINGS)
def test_without_rows_nothing_is_said(find: Find, rows: pd.DataFrame) -> None:
    assert find(rows.head(0), "cpu") is None


def test_localization_is_told_beside_stride_mask_and_copy(rows: pd.DataFrame) -> None:
    text = said(localize_finding, rows)
    assert "runs of 128k ids: localize, first rank takes 0.0076 ns an id" in text
    assert "2x the time of an unchecked stride, 0.18x that of the mask, 4x that of a copy" in text


def test_the_longest_run_is_told_where_the_usual_one_was_not_measured(rows: pd.DataFrame) -> None:
    assert "runs of 4M ids" in said(localize_finding, rows[rows["ids"].isin([4 * 2**20, 2**10])])


def test_triton_is_told_where_it_was_measured(rows: pd.DataFrame) -> None:
    other = rows.replace({"ours": {localize.CHECKED: localize.run_name("triton")}})
    assert "localize_run, triton takes" in said(localize_finding, other)


def test_backup_and_restore_are_told_with_median_and_ends(rows: pd.DataFrame) -> None:
    text = said(copy_finding, rows)
    assert "backup of 32 sizes: 3.2x upstream's speed (2.5x to 4.6x) and 76% of" in text
    assert "; restore of 32 sizes: " in text
    only = rows[rows["op"] == "backup"]
    assert "restore" not in said(copy_finding, only)


def test_merge_and_write_are_told_by_contender(rows: pd.DataFrame) -> None:
    text = said(share_finding, rows)
    assert "merge of c partials by merge_stacked, torch 60% (60% to 60%, 24 cases)" in text
    assert "owner write by the pool's method 40% (40% to 40%, 12 cases)" in text
    one = rows[rows["case"] == merge.FULL[0].name]
    assert said(share_finding, one).endswith(" 60% (60% to 60%, 1 case)")


def test_aims_are_counted_and_the_furthest_is_named(rows: pd.DataFrame) -> None:
    some = rows[rows["aim"].notna()].head(3).assign(met=["yes", "no", "no"], aim=0.4, ratio=0.4)
    some.loc[some.index[1], "ratio"] = 0.1
    text = said(aim_finding, some)
    assert text.startswith("Measured on cpu: 1 of 3 aims are met; furthest from its aim is ")
    assert text.endswith(": 0.1 where 0.4 was aimed at")
    assert said(aim_finding, some.head(1)) == "Measured on cpu: 1 of 1 aims are met"


def test_a_range_has_median_and_ends() -> None:
    assert Range.of(pd.Series([4.0, 1.0, 2.0])) == Range(2.0, 1.0, 4.0, 3)
