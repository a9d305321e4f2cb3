"""What costs are read from, which points are drawn, and what is said, also of what is missing."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, ops
from kvlab.lab.bench.cost import (
    LATER,
    aim_finding,
    aims,
    aims_for_people,
    conditions,
    copy_finding,
    copy_points,
    drawn,
    gpu_aims,
    gpu_sentence,
    lacking_sentence,
    localize_finding,
    localize_points,
    missing,
    origin_of,
    read_costs,
    share_finding,
    share_points,
)
from kvlab.lab.findings import Finding
from kvlab.lab.findings import record as record_finding
from tests.lab.bench.cost_rows import CPU, GPU, LOCALIZE_CASES, frame, record

FINDINGS = (localize_finding, copy_finding, share_finding, aim_finding)
Find = Callable[[pd.DataFrame, str], Finding | None]


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    """The rows of a CPU."""
    record(tmp_path)
    return read_costs(tmp_path).of("cpu")


def said(find: Find, rows: pd.DataFrame) -> str:
    found = find(rows, "cpu")
    assert found is not None
    return found.text


def test_every_file_is_a_device_and_the_cpu_comes_first(tmp_path: Path) -> None:
    record(tmp_path)
    assert gpu_sentence(read_costs(tmp_path)).startswith("No GPU figure exists yet: ")
    record(tmp_path, "a-made-up-gpu", GPU)
    costs = read_costs(tmp_path)
    assert (costs.devices, costs.gpus) == (("cpu", "a-made-up-gpu"), ("a-made-up-gpu",))
    assert set(costs.of("a-made-up-gpu")["device"]) == {GPU.device}
    assert gpu_sentence(costs) == "GPU figures are those of a-made-up-gpu."
    found = conditions(costs)
    assert found["threads"].tolist() == [8, 2]
    assert found["rows"].tolist() == [len(frame())] * 2
    with pytest.raises(StudyError, match=r"got 'tpu', and there are cpu, a-made-up-gpu; record"):
        costs.of("tpu")


def test_of_one_device_the_rows_with_most_threads_are_taken_part_by_part(tmp_path: Path) -> None:
    one, two = frame().assign(threads=1), frame()
    both = pd.concat([one, two[two["part"] != "merge"]], ignore_index=True)
    both.to_csv(tmp_path / "bench-cpu.csv", index=False)
    found = read_costs(tmp_path).of("cpu").groupby("part")["threads"].unique()
    threads = {part: list(threads) for part, threads in found.items()}
    assert threads == {"copy": [2], "localize": [2], "merge": [1], "owner_write": [2]}


def test_localization_has_one_point_for_each_contender_and_length(rows: pd.DataFrame) -> None:
    found = localize_points(rows)
    lengths = [case.ids for case in LOCALIZE_CASES if case.dcp_size == 8]
    assert sorted(found["ids"].unique()) == sorted(lengths)
    assert not found.duplicated(["contender", "ids"]).any()
    assert ops.ALL not in set(found["contender"])
    stride = found[found["contender"] == ops.STRIDE].iloc[0]
    assert stride[["seconds_q1", "seconds", "seconds_q3"]].tolist() == pytest.approx(
        [0.45e-6, 0.5e-6, 0.55e-6]
    )
    assert localize_points(rows, 2)["ids"].unique().tolist() == [128 * 2**10]


def test_backup_and_restore_have_a_ratio_and_a_share_for_every_size(rows: pd.DataFrame) -> None:
    other = rows[rows["part"] == "copy"].head(1).assign(ours=copies.UNSUMMED)
    found = copy_points(pd.concat([rows, other], ignore_index=True))
    assert len(found) == 4 * len(copies.FULL)
    assert not found.duplicated(["op", "measure", "layers", "tokens", "dcp_size"]).any()
    one = found.query("op == 'restore' and layers == 61 and tokens == 16384 and dcp_size == 4")
    values = one.set_index("measure")[["q1", "value", "q3", "aim"]]
    assert values.loc["ratio", :].to_numpy().tolist() == pytest.approx(
        [0.9 * 3.61, 3.61, 1.1 * 3.61, 5]
    )
    assert values.loc["share", "value"] == pytest.approx(0.78)


def test_shares_are_those_beside_a_copy_alone(rows: pd.DataFrame) -> None:
    found = share_points(rows)
    assert len(found) == len(ops.FULL["merge"]) + 2 * len(ops.FULL["owner_write"])
    shares = found.groupby("part")["value"].unique().map(list).to_dict()
    assert shares == {"merge": [0.6], "owner_write": [0.4]}
    assert drawn(found, ["x"]) is found
    assert drawn(found.head(0), ["x"]).to_dict("list") == {"not_measured": ["x"]}


def test_every_row_with_an_aim_is_told_met_or_missed(rows: pd.DataFrame) -> None:
    found, told = aims(rows), aims_for_people(rows)
    assert (found["met"].eq("yes") == (found["ratio"] >= found["aim"] - 1e-3)).all()
    first = told[told["measured"] == "backup / upstream's loop"].iloc[0]
    assert first.tolist()[2:] == ["2.52 (2.27-2.77)", ">= 5", "no"]
    assert [aim for *_, aim in gpu_aims()] == [
        *("at least 5x", "at least 0.85", "within 1.1x of it", "at least 0.8")
    ]


def test_what_the_benchmark_has_and_the_file_lacks_is_named(rows: pd.DataFrame) -> None:
    assert missing(rows) == ()
    assert missing(rows[~rows["case"].str.contains("64k tokens")]) == (
        "copy: 8 of 32 cases are not measured (27 layers x 64k tokens x 576 bf16, c=1; 27 layers x "
        "64k tokens x 576 bf16, c=2; 27 layers x 64k tokens x 576 bf16, c=4 and 5 more)",
    )
    none = rows[rows["part"] != "owner_write"]
    assert missing(none, ["owner_write"]) == ("owner write: none of 12 cases is measured",)


@pytest.mark.parametrize("absent", [True, False])
def test_a_file_from_before_the_sizes_is_read_and_said_to_lack_them(
    absent: bool, tmp_path: Path
) -> None:
    old = frame().drop(columns=list(LATER))
    (old if absent else old.assign(**dict.fromkeys(LATER))).to_csv(
        tmp_path / "bench-cpu.csv", index=False
    )
    costs = read_costs(tmp_path)
    assert costs.lacking == {"cpu": LATER}
    assert lacking_sentence(costs).startswith("bench-cpu.csv was recorded before its sizes were")
    rows = costs.of("cpu")
    assert all(f(rows).empty for f in (localize_points, copy_points, share_points))
    record(tmp_path)
    assert lacking_sentence(read_costs(tmp_path)) == ""


def test_the_origin_names_threads_device_commit_and_day(rows: pd.DataFrame) -> None:
    found = origin_of(rows)
    assert (found.command, found.parameters) == (
        "make bench ARGS='--repeat 3'",
        {"torch threads": "2"},
    )
    assert (found.device, found.commit, found.created) == (CPU.device, "966e344", "2026-01-02")
    later = rows.head(1).assign(commit="1a2b3c4", device=GPU.device)
    both = origin_of(pd.concat([later, rows]))
    assert both.command == "make bench ARGS='--repeat 3 --device cuda'"
    assert both.commit == "1a2b3c4/966e344"
    with pytest.raises(StudyError, match=r"an origin is that of rows: got none; take the rows of"):
        origin_of(rows.head(0))


def test_files_that_are_no_benchmark_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"holds none; make one with `make bench ARGS='--repeat"):
        read_costs(tmp_path)
    file = tmp_path / "bench-cpu.csv"
    wrong = frame().astype({"ratio": "object"})
    wrong.loc[3, "ratio"] = "fast"
    for text, words in (
        (frame().drop(columns=["ratio", "met"]).to_csv(index=False), "it lacks met, ratio"),
        ("", "is a CSV file that `make bench` wrote: "),
        (wrong.to_csv(index=False), "ratio is a number or empty: line 5 has 'fast'; record"),
    ):
        file.write_text(text)
        with pytest.raises(StudyError, match=words):
            read_costs(tmp_path)


def test_the_files_of_the_project_can_be_read() -> None:
    costs = read_costs()
    assert "cpu" in costs.devices
    for slug in costs.devices:
        rows = costs.of(slug)
        assert len(aims(rows))
        assert all(find(rows, slug) is not None for find in FINDINGS)
        assert origin_of(rows).device


@pytest.mark.parametrize("find", FINDINGS)
def test_a_finding_can_be_recorded_and_without_rows_nothing_is_said(
    find: Find, rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLAB_FIGURES", str(tmp_path / "figures"))
    found = find(rows, "cpu")
    assert found is not None
    assert record_finding(found.name, found.sentence, found.values) == found.text
    assert found.name.endswith("-cpu")
    assert find(rows.head(0), "cpu") is None


def test_findings_have_the_numbers_of_the_rows(rows: pd.DataFrame) -> None:
    text = said(localize_finding, rows)
    assert "Measured on cpu, runs of 128k ids: localize, first rank takes 0.0076 ns an id" in text
    assert "2x the time of an unchecked stride, 0.18x that of the mask, 4x that of a copy" in text
    assert "runs of 4M ids" in said(localize_finding, rows[rows["ids"].isin([2**22, 2**10])])
    twin = rows.replace({"ours": {ops.CHECKED: ops.op_name(ops.LOCALIZE, "triton")}})
    assert "localize_run, triton takes" in said(localize_finding, twin)
    text = said(copy_finding, rows)
    assert "backup of 32 sizes: 3.2x upstream's speed (2.5x to 4.6x) and 76% of" in text
    assert "; restore of 32 sizes: " in text
    assert "restore" not in said(copy_finding, rows[rows["op"] == "backup"])
    text = said(share_finding, rows)
    assert "merge of c partials by merge_stacked, torch 60% (60% to 60%, 24 cases)" in text
    assert "owner write by the pool's method 40% (40% to 40%, 12 cases)" in text


def test_aims_are_counted_and_the_furthest_is_named(rows: pd.DataFrame) -> None:
    some = rows[rows["aim"].notna()].head(3).assign(met=["yes", "no", "no"], aim=0.4, ratio=0.4)
    some.loc[some.index[1], "ratio"] = 0.1
    text = said(aim_finding, some)
    assert text.startswith("Measured on cpu: 1 of 3 aims are met; furthest from its aim is ")
    assert text.endswith(": 0.1 where 0.4 was aimed at")
    assert said(aim_finding, some.head(1)) == "Measured on cpu: 1 of 1 aims are met"
