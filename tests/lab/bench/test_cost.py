"""What costs are read from, which points are drawn, and what is said, also of what is missing."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.cost import (
    aim_finding,
    aims_for_people,
    conditions,
    copy_finding,
    copy_points,
    drawn,
    gpu_sentence,
    localize_finding,
    localize_points,
    missing,
    origin_of,
    read_costs,
    share_finding,
    share_points,
)
from kvlab.lab.findings import Finding
from tests.lab.bench.cost_rows import GPU, frame, record

FINDINGS = (localize_finding, copy_finding, share_finding, aim_finding)
Find = Callable[[pd.DataFrame, str], Finding | None]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The rows of a CPU."""
    return read_costs(record(tmp_path_factory.mktemp("runs")).parent).of("cpu")


def said(find: Find, rows: pd.DataFrame) -> str:
    found = find(rows, "cpu")
    assert found is not None
    return found.text


def test_every_file_is_a_device_and_the_cpu_comes_first(tmp_path: Path) -> None:
    record(tmp_path)
    assert gpu_sentence(read_costs(tmp_path)).startswith("No GPU figure exists yet: ")
    record(tmp_path, "a-made-up-gpu", GPU)
    costs = read_costs(tmp_path)
    assert costs.devices == ("cpu", "a-made-up-gpu")
    assert set(costs.of("a-made-up-gpu")["device"]) == {GPU["device"]}
    assert gpu_sentence(costs) == "GPU figures are those of a-made-up-gpu."
    assert sorted(conditions(costs)["threads"]) == [2, 8]


def test_of_one_device_the_rows_with_most_threads_are_taken_part_by_part(tmp_path: Path) -> None:
    one, two = frame().assign(threads=1), frame()
    both = pd.concat([one, two[two["part"] != "merge"]], ignore_index=True)
    both.to_csv(tmp_path / "bench-cpu.csv", index=False)
    rows = read_costs(tmp_path).of("cpu")
    merges = rows["part"] == "merge"
    assert (set(rows[merges]["threads"]), set(rows[~merges]["threads"])) == ({1}, {2})


def test_a_file_that_the_benchmark_did_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"holds no bench-<device>.csv"):
        read_costs(tmp_path)
    good = frame()
    for text in (
        good.drop(columns="ratio").to_csv(index=False),
        good.astype({"ratio": "object"}).assign(ratio="fast").to_csv(index=False),
        "",
    ):
        (tmp_path / "bench-cpu.csv").write_text(text)
        with pytest.raises(StudyError, match=r"bench-cpu\.csv is not what `make bench` wrote"):
            read_costs(tmp_path)


def test_every_contender_of_one_rank_has_a_time_at_every_length(rows: pd.DataFrame) -> None:
    found = localize_points(rows)
    assert sorted(found["ids"].unique()) == [ids for ids, c in ops.RUNS if c == 8]
    assert not found.duplicated(["contender", "ids"]).any()
    assert ops.ALL not in set(found["contender"])
    stride = found[found["contender"] == ops.STRIDE].iloc[0]
    assert stride.iloc[2:].tolist() == pytest.approx([0.45e-6, 0.5e-6, 0.55e-6])


def test_backup_and_restore_have_a_ratio_and_a_share_for_every_size(rows: pd.DataFrame) -> None:
    other = rows[rows["part"] == "copy"].head(1).assign(ours=copies.UNSUMMED)
    found = copy_points(pd.concat([rows, other], ignore_index=True))
    assert len(found) == 4 * len(copies.SIZES)
    assert not found.duplicated(["op", "measure", "layers", "tokens", "dcp_size"]).any()
    one = found.query("op == 'restore' and layers == 61 and tokens == 16384 and dcp_size == 4")
    ratio = one[one["measure"] == "ratio"][["q1", "value", "q3", "aim"]].iloc[0]
    assert ratio.tolist() == pytest.approx([0.9 * 3.61, 3.61, 1.1 * 3.61, 5])
    assert one[one["measure"] == "share"]["value"].tolist() == [0.78]


def test_shares_are_those_beside_a_copy_alone(rows: pd.DataFrame) -> None:
    found = share_points(rows)
    assert len(found) == len(ops.MERGES) + 2 * len(ops.STEPS)
    assert found.groupby("part")["value"].unique().map(list).tolist() == [[0.6], [0.4]]
    assert drawn(found, ["x"]) is found
    assert drawn(found.head(0), ["x"]).to_dict("list") == {"not_measured": ["x"]}


def test_what_the_benchmark_has_and_the_file_lacks_is_named(rows: pd.DataFrame) -> None:
    assert missing(rows) == ()
    (some,) = missing(rows[~rows["case"].str.contains("64k tokens")])
    assert some.startswith("copy: 8 of 32 cases are missing (27 layers x 64k tokens x 576 bf16, c=")
    assert some.endswith("c=4 and 5 more)")
    none = rows[rows["part"] != "owner_write"]
    assert missing(none, ["owner_write"]) == ("owner write: none of 12 cases is measured",)


def test_the_origin_names_threads_device_commit_and_day(rows: pd.DataFrame) -> None:
    origin = origin_of(rows)
    assert origin.command == "make bench ARGS='--repeat 3'"
    assert (origin.commit, origin.parameters) == ("966e344", {"torch threads": "2"})
    gpu = origin_of(rows.assign(device=str(GPU["device"])))
    assert gpu.command == "make bench ARGS='--repeat 3 --device cuda'"


def test_the_recorded_files_give_every_finding_and_no_rows_give_none() -> None:
    costs = read_costs()
    for slug in costs.devices:
        rows = costs.of(slug)
        assert all(find(rows, slug) is not None for find in FINDINGS)
        assert all(find(rows.head(0), slug) is None for find in FINDINGS)


def test_findings_have_the_numbers_of_the_rows(rows: pd.DataFrame) -> None:
    text = said(localize_finding, rows)
    assert "runs of 128k ids: localize, first rank takes 0.0076 ns an id, 2x the time of" in text
    assert "0.18x that of the mask, 4x that of a copy of" in text
    assert "runs of 4M ids" in said(localize_finding, rows[rows["ids"].isin([2**22, 2**10])])
    twin = rows.replace({"ours": {ops.CHECKED: ops.op_name(ops.LOCALIZE, "triton")}})
    assert "localize_run, triton takes" in said(localize_finding, twin)
    text = said(copy_finding, rows)
    assert "backup of 32 sizes: 3.2x upstream's speed (2.5x to 4.6x) and 76% of" in text
    assert "restore" not in said(copy_finding, rows[rows["op"] == "backup"])
    text = said(share_finding, rows)
    assert "merge of c partials by merge_stacked, torch 60% (60% to 60%, 24 cases)" in text


def test_aims_are_counted_and_the_furthest_is_named(rows: pd.DataFrame) -> None:
    told = aims_for_people(rows).set_index("measured")
    backup = told.loc["backup / upstream's loop"].iloc[0]
    assert backup.tolist()[1:] == ["2.52 (2.27-2.77)", ">= 5", "no"]
    some = rows[rows["aim"].notna()].head(3).assign(met=["yes", "no", "no"], aim=0.4, ratio=0.4)
    some.loc[some.index[1], "ratio"] = 0.1
    text = said(aim_finding, some)
    assert text.startswith("Measured on cpu: 1 of 3 aims are met; furthest from its aim is ")
    assert text.endswith(": 0.1 where 0.4 was aimed at")
    assert said(aim_finding, some.head(1)) == "Measured on cpu: 1 of 1 aims are met"
