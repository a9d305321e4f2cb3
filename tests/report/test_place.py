"""A report replaces nothing but an earlier report, is written by one run, or is the old one."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkProcess as Holder
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from kvlab.report.execute import execute_all
from kvlab.report.notebook_files import ReportError
from kvlab.report.place import FORMAT, MANIFEST, TakenError, held, swapped_in


def write_report(folder: Path, *files: str) -> Path:
    """A folder with a report of these files."""
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}))
    return folder


def write(out: Path) -> None:
    """Write a new report of one page to ``out``."""
    with swapped_in(out) as half:
        (half / "new.html").touch()
        (half / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": ["new.html"]}))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A report of two files."""
    return write_report(tmp_path / "report", "old.html", "figures/a.svg")


def hold(place: Path, inside: Event) -> None:
    """Write a report to ``place`` that never ends."""
    with swapped_in(place) as half:
        (half / "half.html").touch()
        inside.set()
        time.sleep(600)


@pytest.fixture
def holder(old: Path) -> Iterator[Holder]:
    """Another process that writes a report to the place of ``old``."""
    forked = multiprocessing.get_context("fork")  # nothing is imported anew
    inside = forked.Event()
    process = forked.Process(target=hold, args=(old, inside))
    process.start()
    assert inside.wait(60)
    yield process
    process.kill()
    process.join()


def names(folder: Path) -> list[str]:
    """What a folder holds."""
    return sorted(path.name for path in folder.iterdir())


def test_a_report_replaces_an_earlier_one_as_a_whole_and_itself_too(old: Path) -> None:
    for _ in range(2):
        write(old)
        assert names(old) == [MANIFEST, "new.html"]
        assert names(old.parent) == ["report"]


@pytest.mark.parametrize(
    "manifest",
    ["{}", "[]", "", "\xff", '{"manifest_version": 3}', f'{{"format": "{FORMAT}"}}', "[" * 99_999],
)
def test_a_folder_whose_manifest_is_not_that_of_a_report_is_left_alone(
    tmp_path: Path, manifest: str
) -> None:
    (tmp_path / MANIFEST).write_text(manifest, encoding="latin-1")
    with pytest.raises(ReportError, match=r"holds other files and no manifest.json of this kvlab"):
        write(tmp_path)
    assert (tmp_path / MANIFEST).read_text(encoding="latin-1") == manifest


def test_the_root_of_the_file_system_is_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match=r"/ holds other files and no manifest.json"):
        write(Path("/"))


@pytest.mark.parametrize("name", ["thesis.txt", "figures/b.svg", ".git"])
def test_a_file_that_no_report_wrote_makes_it_refuse(old: Path, name: str) -> None:
    (old / name).write_text("mine")
    with pytest.raises(ReportError, match=rf"holds {name} and 0 more files that no report wrote"):
        write(old)
    assert (old / name).read_text() == "mine"


def test_a_file_that_comes_while_the_notebooks_run_makes_it_refuse_too(old: Path) -> None:
    with pytest.raises(ReportError, match=r"holds thesis\.txt and 0 more"), swapped_in(old):
        (old / "thesis.txt").touch()
    assert {"thesis.txt", "old.html"} <= set(names(old))


def test_a_link_stays_a_link_and_its_target_is_replaced(old: Path) -> None:
    link = old.with_name("link")
    link.symlink_to(old)
    write(link)
    assert link.is_symlink()
    assert names(old) == [MANIFEST, "new.html"]


def test_a_place_that_is_no_folder_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for out, said in {
        "file": "a report is a folder: file is a file",
        "file/x": "cannot be written to file/x: .*; name another place with --out",
        "": "'.' is the current folder; name a folder in it with --out",
    }.items():
        with pytest.raises(ReportError, match=said):
            write(Path(out))
    assert names(tmp_path) == ["file"]


def test_a_second_report_at_the_same_place_is_told_that_one_is_being_written(
    old: Path, holder: Holder
) -> None:
    with pytest.raises(ReportError, match=r"another report is being written here, to .*; wait"):
        write(old)
    assert "old.html" in names(old)


def test_what_a_killed_run_left_goes_with_the_next(old: Path, holder: Holder) -> None:
    holder.kill()
    holder.join()
    assert names(old.parent) == [".report.kvlab", "report"]
    write(old)
    assert names(old.parent) == ["report"]


def test_the_old_report_comes_back_after_a_kill_between_the_two_moves(
    old: Path, holder: Holder
) -> None:
    holder.kill()
    holder.join()
    os.replace(old, old.with_name(".report.kvlab") / "old")
    with pytest.raises(ValueError, match="a bad notebook"), swapped_in(old):
        raise ValueError("a bad notebook")
    assert "old.html" in names(old)
    assert names(old.parent) == ["report"]


@pytest.mark.parametrize("move", [1, 2, 3, 4])
def test_an_interrupt_or_a_failure_of_any_move_leaves_the_old_report(
    old: Path, move: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, moves = os.replace, list[Path]()

    def stopped(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) == move:
            raise KeyboardInterrupt if move % 2 else PermissionError(1, "Operation not permitted")
        really(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    said = r"cannot be written to .*: Operation not permitted; name another place with --out"
    with pytest.raises(
        KeyboardInterrupt if move % 2 else ReportError, match=None if move % 2 else said
    ):
        write(old)
    assert "old.html" in names(old)
    assert names(old.parent) == ["report"]


def test_a_file_of_the_user_in_the_folder_beside_the_report_stays(old: Path) -> None:
    mine = old.with_name(".report.kvlab") / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    write(old)
    assert names(old) == [MANIFEST, "new.html"]
    assert (names(mine.parent), mine.read_text()) == (["mine.txt"], "mine")


def test_the_place_of_the_half_made_report_is_not_followed_through_a_link(old: Path) -> None:
    precious = write_report(old.with_name("precious"), "new", "old")
    old.with_name(".report.kvlab").symlink_to(precious)
    with pytest.raises(ReportError, match="cannot be written to"):
        write(old)
    assert names(precious) == [MANIFEST, "new", "old"]


def test_folders_of_kernels_whose_run_was_killed_go_with_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, alive = tmp_path / "kvlab-run-dead", tmp_path / "kvlab-run-alive"
    (dead / "runtime").mkdir(parents=True)
    with held(alive):
        execute_all([], tmp_path / "figures")
        assert names(tmp_path) == ["figures", "kvlab-run-alive"]
        with pytest.raises(TakenError), held(alive):
            pass
    assert names(tmp_path) == ["figures"]
