"""What costs are read from, which points are drawn, and what is said of that which is missing.

The files are made up (``cost_rows``); the last tests look at those of the project.
"""

from pathlib import Path

import pandas as pd
import pytest

from kvlab.errors import StudyError
from kvlab.lab import cost
from kvlab.lab.bench import localize, merge, request_pool, requests, writes
from kvlab.lab.cost import (
    LATER,
    aims,
    aims_for_people,
    conditions,
    copy_points,
    drawn,
    gpu_sentence,
    lacking_sentence,
    localize_points,
    missing,
    origin_of,
    read_costs,
    share_points,
)
from tests.lab.cost_rows import CPU, GPU, frame, record


@pytest.fixture
def rows(tmp_path: Path) -> pd.DataFrame:
    """The rows of a CPU."""
    record(tmp_path)
    return read_costs(tmp_path).of("cpu")


def test_every_file_is_a_device_and_the_cpu_comes_first(tmp_path: Path) -> None:
    record(tmp_path, "a-made-up-gpu", GPU)
    record(tmp_path)
    (tmp_path / "crash-cuda.json").write_text("{}")
    costs = read_costs(tmp_path)
    assert costs.devices == ("cpu", "a-made-up-gpu")
    assert costs.gpus == ("a-made-up-gpu",)
    assert set(costs.of("a-made-up-gpu")["device"]) == {GPU.device}
    with pytest.raises(StudyError, match=r"got 'tpu', and there are cpu, a-made-up-gpu; record"):
        costs.of("tpu")


def test_that_no_gpu_figure_exists_follows_from_the_files(tmp_path: Path) -> None:
    record(tmp_path)
    text = gpu_sentence(read_costs(tmp_path))
    assert text.startswith("No GPU figure exists yet: ")
    assert "there is only bench-cpu.csv; `make bench ARGS='--repeat 3 --device" in text
    record(tmp_path, "a-made-up-gpu", GPU)
    assert gpu_sentence(read_costs(tmp_path)) == "GPU figures are those of a-made-up-gpu."


def test_of_one_device_the_rows_with_most_threads_are_taken_part_by_part(tmp_path: Path) -> None:
    one = frame().assign(threads=1)
    two = frame()
    both = pd.concat([one, two[two["part"] != "merge"]], ignore_index=True)
    both.to_csv(tmp_path / "bench-cpu.csv", index=False)
    found = read_costs(tmp_path).of("cpu").groupby("part")["threads"].unique()
    assert {part: list(threads) for part, threads in found.items()} == {
        "copy": [2],
        "localize": [2],
        "merge": [1],
        "owner_write": [2],
    }


def test_a_commit_that_looks_like_a_number_stays_text(rows: pd.DataFrame) -> None:
    assert set(rows["commit"]) == {"966e344"}


def test_localization_has_one_point_for_each_contender_and_length(rows: pd.DataFrame) -> None:
    found = localize_points(rows)
    lengths = [case.ids for case in localize.FULL if case.dcp_size == 8]
    assert sorted(found["ids"].unique()) == sorted(lengths)
    assert set(found["contender"]) == {
        *(localize.CHECKED, localize.FIRST, localize.STRIDE, localize.MASK, localize.COPY),
        localize.run_name("torch"),
    }
    assert not found.duplicated(["contender", "ids"]).any()
    stride = found[found["contender"] == localize.STRIDE].iloc[0]
    assert stride[["seconds_q1", "seconds", "seconds_q3"]].tolist() == pytest.approx(
        [0.45e-6, 0.5e-6, 0.55e-6]
    )


def test_localization_can_be_asked_for_another_dcp_size(rows: pd.DataFrame) -> None:
    assert localize_points(rows, 2)["ids"].unique().tolist() == [128 * 2**10]
    assert localize_points(rows, 5).empty


def test_backup_and_restore_have_a_ratio_and_a_share_for_every_size(rows: pd.DataFrame) -> None:
    found = copy_points(rows)
    assert len(found) == 4 * len(requests.FULL)
    assert not found.duplicated(["op", "measure", "layers", "tokens", "dcp_size"]).any()
    one = found.query("op == 'restore' and layers == 61 and tokens == 16384 and dcp_size == 4")
    values = one.set_index("measure")[["q1", "value", "q3", "aim"]]
    assert values.loc["ratio", :].to_numpy().tolist() == pytest.approx(
        [0.9 * 3.61, 3.61, 1.1 * 3.61, 5]
    )
    assert values.loc["share", "value"] == pytest.approx(0.78)


def test_the_older_rows_of_copies_are_another_comparison(rows: pd.DataFrame) -> None:
    other = rows[rows["part"] == "copy"].head(1).assign(baseline="memory copy")
    both = pd.concat([rows, other], ignore_index=True)
    assert len(copy_points(both)) == len(copy_points(rows))


def test_shares_are_those_beside_a_copy_alone(rows: pd.DataFrame) -> None:
    found = share_points(rows)
    assert len(found) == len(merge.FULL) + 2 * len(writes.FULL)
    assert found.groupby("part")["value"].unique().map(list).to_dict() == {
        "merge": [0.6],
        "owner_write": [0.4],
    }
    assert (found["q1"] < found["value"]).all()
    assert (found["value"] < found["q3"]).all()


def test_every_row_with_an_aim_is_told_met_or_missed(rows: pd.DataFrame) -> None:
    found = aims(rows)
    assert set(found["met"]) <= {"yes", "no"}
    assert (found["met"].eq("yes") == (found["ratio"] >= found["aim"] - 1e-3)).all()
    told = aims_for_people(rows)
    assert len(told) == len(found)
    first = told[told["measured"] == "backup / upstream's loop"].iloc[0]
    assert first.tolist()[2:] == ["2.52 (2.27-2.77)", ">= 5", "no"]


def test_what_the_benchmark_has_and_the_file_lacks_is_named(rows: pd.DataFrame) -> None:
    assert missing(rows) == ()
    large = rows["case"].str.contains("64k tokens")
    (said,) = missing(rows[~large])
    assert said == (
        "copy: 8 of 32 cases are not measured (27 layers x 64k tokens x 576 bf16, c=1; 27 layers x "
        "64k tokens x 576 bf16, c=2; 27 layers x 64k tokens x 576 bf16, c=4 and 5 more)"
    )
    none = rows[rows["part"] != "owner_write"]
    assert missing(none, ["owner_write"]) == ("owner write: none of 12 cases is measured",)
    one = rows[rows["case"] != merge.FULL[0].name]
    assert missing(one) == (f"merge: 1 of 24 cases are not measured ({merge.FULL[0].name})",)


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
    assert len(missing(rows)) == 4
    assert len(aims(rows))
    record(tmp_path)
    assert lacking_sentence(read_costs(tmp_path)) == ""


def test_a_figure_without_points_is_saved_with_what_was_not_measured(rows: pd.DataFrame) -> None:
    points = share_points(rows)
    assert drawn(points, ["x"]) is points
    assert drawn(points.head(0), ["x"]).to_dict("list") == {"not_measured": ["x"]}
    assert drawn(points.head(0), []).to_dict("list") == {"not_measured": ["nothing"]}


def test_every_device_is_told_with_its_threads_and_versions(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path, "a-made-up-gpu", GPU)
    found = conditions(read_costs(tmp_path))
    assert found["slug"].tolist() == ["a-made-up-gpu", "cpu"]
    assert found["threads"].tolist() == [8, 2]
    assert found["rows"].tolist() == [len(frame())] * 2


def test_the_origin_names_threads_device_commit_and_day(rows: pd.DataFrame) -> None:
    found = origin_of(rows)
    assert found.command == "make bench ARGS='--repeat 3'"
    assert found.parameters == {"torch threads": "2"}
    assert (found.device, found.commit, found.created) == (CPU.device, "966e344", "2026-01-02")
    later = rows.head(1).assign(commit="1a2b3c4", device=GPU.device)
    both = origin_of(pd.concat([later, rows]))
    assert both.command == "make bench ARGS='--repeat 3 --device cuda'"
    assert both.commit == "1a2b3c4/966e344"
    with pytest.raises(StudyError, match=r"an origin is that of rows: got none; take the rows of"):
        origin_of(rows.head(0))


def test_a_folder_without_a_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"holds none; make one with `make bench ARGS='--repeat"):
        read_costs(tmp_path)


def test_a_file_that_lacks_what_a_benchmark_has_is_refused(tmp_path: Path) -> None:
    frame().drop(columns=["ratio", "met"]).to_csv(tmp_path / "bench-cpu.csv", index=False)
    with pytest.raises(
        StudyError, match=r"bench-cpu\.csv has the columns part, .*lacks met, ratio"
    ):
        read_costs(tmp_path)
    (tmp_path / "bench-cpu.csv").write_text("")
    with pytest.raises(StudyError, match=r"bench-cpu\.csv is a CSV file that `make bench` wrote: "):
        read_costs(tmp_path)


def test_a_word_where_a_number_belongs_is_refused_by_line(tmp_path: Path) -> None:
    table = frame().astype({"ratio": "object"})
    table.loc[3, "ratio"] = "fast"
    table.to_csv(tmp_path / "bench-cpu.csv", index=False)
    with pytest.raises(StudyError, match=r"ratio is a number or empty: line 5 has 'fast'; record"):
        read_costs(tmp_path)


def test_the_files_of_the_project_can_be_read() -> None:
    costs = read_costs()
    assert "cpu" in costs.devices
    for slug in costs.devices:
        rows = costs.of(slug)
        assert len(aims(rows))
        assert origin_of(rows).device
        for points in (localize_points, copy_points, share_points):
            points(rows)


def test_the_aims_for_a_gpu_are_those_of_the_benchmark() -> None:
    words = [aim for _, _, aim in cost.gpu_aims()]
    wanted = (requests.ABOVE_UPSTREAM, requests.NEAR_COPY, localize.NEAR_COPY, merge.NEAR_COPY)
    assert words == [aim.words for aim in wanted]
    (size,) = [case.name for case in localize.FULL if case.aimed == "cuda"]
    assert size.startswith("4M ids")


def test_the_names_of_copies_are_those_of_the_benchmark() -> None:
    assert cost.COPIES == (localize.COPY, request_pool.OUT, request_pool.BACK)
    assert {merge.COPY, writes.COPY} <= set(cost.COPIES)
