"""Kept points: one key of all that decides them, none believed unverified; and who makes them."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvlab
from kvlab.errors import StudyError
from kvlab.files import clear_leftovers, put, require_writable, whole_file
from kvlab.lab.keep import Keep, code_digest, finished, point_key

ROOT = Path(kvlab.__file__).parent
VALUES: dict[str, Any] = {"c": 4, "gib": 0.1, "label": "measured", "kl": np.arange(3.0)}
HERE = os.environ | {"PYTHONPATH": str(ROOT.parent)}

digest = code_digest.__wrapped__


def test_a_change_in_any_module_of_the_package_changes_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = {path: path.read_bytes() for path in ROOT.rglob("*.py")}
    assert len(sources) > 50
    monkeypatch.setattr(Path, "read_bytes", lambda path: sources[path])
    monkeypatch.setattr(Path, "rglob", lambda *_: list(sources))
    found = {digest()}
    assert found == {code_digest()}
    for path, source in list(sources.items()):
        sources[path] = source + b"\n"
        found.add(digest())
        sources[path] = source
    assert len(found) == 1 + len(sources)


def test_a_module_that_moves_or_goes_and_another_version_of_a_library_change_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    found = {digest(tmp_path)}
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    found.add(digest(tmp_path))
    (tmp_path / "c.py").touch()
    found.add(digest(tmp_path))
    (tmp_path / "b.py").unlink()
    found.add(digest(tmp_path))
    version = metadata.version
    for library in ("torch", "transformers", "numpy", "pandas"):
        newer = {library: "9"}
        monkeypatch.setattr(metadata, "version", lambda x, newer=newer: newer.get(x, version(x)))
        found.add(digest(tmp_path))
    assert len(found) == 8


def test_the_facts_of_a_point_change_its_key() -> None:
    facts = (("a", 1), ("a", 2), ("a", 1.0), ({"a": 1},), ("a", None))
    assert len({point_key(*fact) for fact in facts}) == len(facts)
    assert point_key({"a": 1, "b": 2}) == point_key({"b": 2, "a": 1})


def test_a_point_is_read_as_it_was_written_and_no_object_is_pickled(tmp_path: Path) -> None:
    kept = Keep(tmp_path / "new" / "folder")
    assert kept.read("k") is None
    kept.write("k", VALUES)
    back = kept.read("k")
    assert back is not None
    np.testing.assert_array_equal(back.pop("kl"), VALUES["kl"])
    assert back == {"c": 4, "gib": 0.1, "label": "measured"}
    assert [type(value) for value in back.values()] == [int, float, str]
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        kept.write("other", {"what": np.array([{}])})
    assert kept.read("other") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"m\0\0\0e", b"n\0\0\0e"),
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data.split(b"\n", 1)[1],
        lambda data: data.replace(b"\n", b"\n\n", 1),
    ],
)
def test_what_does_not_verify_is_made_again_and_said_so(tmp_path: Path, damage: Any) -> None:
    work: Any = {key: partial(dict, VALUES, c=key) for key in ("one", "two")}
    finished(work, keep=Keep(tmp_path), jobs=1)
    place = tmp_path / "one.kept"
    whole = place.read_bytes()
    place.write_bytes(damage(whole))
    assert place.read_bytes() != whole
    notes: list[str] = []
    again = finished(work, keep=Keep(tmp_path, notes.append), jobs=1)
    assert again["one"]["label"] == "measured"
    assert notes == ["one.kept is damaged and is made again"]
    assert Keep(tmp_path, notes.append).read("one") is not None
    shutil.copy(tmp_path / "two.kept", place)  # a file of another point under this name
    assert Keep(tmp_path, notes.append).read("one") is None
    assert len(notes) == 2


def test_a_folder_that_cannot_be_written_and_no_jobs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match=r"file' cannot be written: File exists; name another"):
        Keep(tmp_path / "file")
    with pytest.raises(StudyError, match=r"jobs counts processes, at least 1: got 0"):
        finished({}, keep=Keep(None), jobs=0)
    with pytest.raises(StudyError, match="x' cannot be written: Not a directory"):
        put(tmp_path / "file" / "x", "text")
    require_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


SWEEP = """
import os, sys, time
from functools import partial
from importlib import metadata
from pathlib import Path
from kvlab.lab.keep import Keep, finished

def work(folder, i):
    Path(folder, str(os.getpid())).touch()
    time.sleep(300)
    return {"i": i}

finished({str(i): partial(work, sys.argv[1], i) for i in range(4)}, keep=Keep(None), jobs=2)
"""


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_no_worker_outlives_its_parent_nor_holds_its_output(
    tmp_path: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=HERE,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    process.send_signal(how)
    process.communicate(timeout=20)  # ends when nobody holds the other end
    while any(map(lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(lives, workers))
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        assert not list(folder.glob(f"joblib_memmapping_folder_{process.pid}_*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from kvlab.files import whole_file

with whole_file(Path(sys.argv[1], "row.csv")) as part:
    part.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_whose_part_was_cleared_before_it_was_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, cleared = os.open, list[Any]()

    def open_and_lose(path: Any, *how: Any) -> int:
        handle = opened(path, *how)
        if not cleared:  # as another writer does, that looks at the folder just now
            clear_leftovers(tmp_path)
            cleared.append(path)
        return handle

    monkeypatch.setattr(os, "open", open_and_lose)
    with whole_file(tmp_path / "a.csv") as part:
        assert cleared[0] != part
        part.write_text("whole")
        clear_leftovers(tmp_path)  # nor is it cleared now
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_link_is_followed_and_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("old")
    (tmp_path / "a.csv").chmod(0o600)
    (tmp_path / "link").symlink_to("a.csv")
    put(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.csv").read_text() == "new"
    assert (tmp_path / "a.csv").stat().st_mode & 0o777 == 0o600
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    put(pipe, b"whole")
    assert os.read(reader, 9) == b"whole"
    os.close(reader)
    assert pipe.is_fifo()


def test_the_part_of_a_killed_writer_goes_with_the_next_one_and_that_of_a_live_one_stays(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=HERE)
    assert len(list(tmp_path.glob(".kvlab-*"))) == 1
    with whole_file(tmp_path / "a.csv") as part:
        assert list(tmp_path.iterdir()) == [part]
        part.write_text("whole")
        clear_leftovers(tmp_path)
        with whole_file(tmp_path / "b.csv") as other:
            assert {part, other} == set(tmp_path.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", "b.csv"}
