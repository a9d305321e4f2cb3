"""The data folder is what its README says: columns, sources, sizes, and the generated workload."""

import csv
import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kvlab import files
from kvlab.engine.workload import default_workload, generate_closed_loop, save_csv
from kvlab.errors import KvlabError
from kvlab.memory.geometry import load_geometries
from kvlab.memory.published import PUBLISHED, data_path, load_published

DATA = Path(__file__).resolve().parents[2] / "data"
README = (DATA / "README.md").read_text(encoding="utf-8")
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.csv"))
CASES = "cases/index_cases.jsonl"


def shipped() -> list[str]:
    """Every file of the folder but its README; dot files belong to editors and notebooks."""
    paths = (path.relative_to(DATA) for path in DATA.rglob("*") if path.is_file())
    visible = (path for path in paths if not any(part.startswith(".") for part in path.parts))
    return sorted({path.as_posix() for path in visible} - {"README.md"})


def rows(file: str) -> list[list[str]]:
    text = (DATA / file).read_text(encoding="utf-8").splitlines()
    return list(csv.reader(line for line in text if not line.startswith("#")))


def schema(file: str) -> list[str]:
    """The first column of the table under the README's heading for this file."""
    (section,) = (s for s in README.split("\n## ")[1:] if fnmatch(file, s.splitlines()[0]))
    if same := re.search(r"^Columns: those of `([^`]+)`", section, re.MULTILINE):
        return schema(same[1])
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("file", FILES)
def test_the_columns_of_every_csv_are_those_of_the_readme(file: str) -> None:
    assert rows(file)[0] == schema(file)


@pytest.mark.parametrize("file", FILES)
def test_every_line_has_a_field_for_every_column(file: str) -> None:
    table = rows(file)
    assert {len(row) for row in table} == {len(table[0])}


def test_the_readme_lists_every_file_and_gives_each_a_section() -> None:
    listed = re.findall(r"^\| `([^`]+)` \|", README.split("\n## ")[0], re.MULTILINE)
    for patterns in (listed, re.findall(r"^## (\S+/\S+)$", README, re.MULTILINE)):
        assert [file for file in shipped() if not any(fnmatch(file, p) for p in patterns)] == []
    assert [p for p in listed if not any(fnmatch(file, p) for file in shipped())] == []


def test_every_case_has_the_fields_of_the_readme_in_that_order() -> None:
    lines = (DATA / CASES).read_text(encoding="utf-8").splitlines()
    assert {tuple(json.loads(line)) for line in lines} == {tuple(schema(CASES))}
    assert f"| `{CASES}` | {len(lines)} inputs and right answers" in README
    assert f"`c01` to `c{len(lines)}`, in order" in README


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_row_has_a_source_and_is_marked_reported(name: str) -> None:
    frame = load_published(name)
    assert len(frame) >= 5
    assert frame.source.str.fullmatch(r"sglang#\d+").all()
    assert set(frame.status) == {"reported"}


def test_every_model_has_a_source_and_a_name_of_its_own_and_no_bytes_that_could_go_stale() -> None:
    models, table = load_geometries(), rows("models/geometry.csv")
    assert len(models) == len(table) - 1
    assert all(model.source for model in models.values())
    assert not [column for column in table[0] if "byte" in column]


def test_the_reported_retractions_stay_text_and_counts_stay_numbers() -> None:
    runs = load_published("retraction_runs")
    assert "140-200" in runs.retractions.tolist()
    assert runs.loc[runs.arm == "C", ["retractions", "completed"]].values.tolist() == [["8", 2048]]
    assert runs.version.dropna().str.len().min() >= 4


def test_reported_capacities_of_sharded_pools_are_rows_times_ranks() -> None:
    pools = load_published("dcp_capacity").set_index("source")
    for source in ("sglang#39731", "sglang#32730", "sglang#33432"):
        row = pools.loc[source]
        assert row.tokens_logical == row.tokens_per_rank * row.dcp_size


def test_the_shipped_workload_is_the_one_its_recipe_makes(tmp_path: Path) -> None:
    made = generate_closed_loop(2000, seed=2026, name="default")
    assert default_workload() == made
    save_csv(made, tmp_path / "default.csv")
    shipped = DATA / "workloads" / "default.csv"
    assert (tmp_path / "default.csv").read_bytes() == shipped.read_bytes()
    assert shipped.stat().st_size < 60_000
    assert "generate_closed_loop(2000, seed=2026" in README


def test_a_missing_data_folder_says_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KvlabError, match=r"data/none\.csv lies in .*: it is not in '.*data'; inst"):
        data_path("none.csv")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "kvlab" / "files.py"))
    with pytest.raises(KvlabError, match=r"it is not in '.*'; install kvlab again"):
        default_workload()
