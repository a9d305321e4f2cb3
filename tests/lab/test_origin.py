"""An origin says enough to make a number again, and nothing about whose machine it was."""

import json
import re
import socket
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvlab
from kvlab.errors import StudyError
from kvlab.lab import origin as module
from kvlab.lab.origin import Origin, collect_origin, commit, describe_device, today, without_paths

# Paths are put together, so that no line of the repository looks like somebody's machine.
SOMEWHERE = "/" + "srv/someone/traces"


def test_the_footer_says_how_it_was_made_and_with_what() -> None:
    versions = {"kvlab": "0.1.0", "python": "3.11.4"}
    parameters: dict[str, module.Value] = {"dcp_size": [1, 2], "share": 0.25}
    full = Origin("kvlab owners", 0, parameters, "cpu (2 cores)", versions, "1a2b3c4", "2026-03-01")
    assert full.footer() == (
        "kvlab owners · seed 0 · dcp_size=1/2, share=0.25\n"
        "kvlab 0.1.0 (1a2b3c4) · python 3.11.4 · cpu (2 cores) · 2026-03-01"
    )
    bare = Origin("run", None, {}, "cpu (1 core)", {"python": "3.11.4"}, None, "2026-03-01")
    assert bare.footer() == "run\npython 3.11.4 · cpu (1 core) · 2026-03-01"


def test_an_origin_names_what_decides_numbers_and_survives_json() -> None:
    collected = collect_origin("kvlab crash", 3, {"pages": range(2), "nested": {"a": (1, None)}})
    assert Origin(**json.loads(json.dumps(collected.as_dict()))) == collected
    assert collected.parameters == {"pages": [0, 1], "nested": {"a": [1, None]}}
    assert {"kvlab", "python", "torch", "numpy", "matplotlib"} <= collected.versions.keys()
    assert collected.versions["kvlab"] == kvlab.__version__


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"kvlab report --trace {SOMEWHERE}/a.csv --jobs 2", "kvlab report --trace a.csv --jobs 2"),
        (f"--trace={SOMEWHERE}/a.csv", "--trace=a.csv"),
        (f"['{SOMEWHERE}/a.csv']", "['a.csv']"),
        ("~someone/traces/a.csv", "a.csv"),
        (f"file://{SOMEWHERE}/a.csv", "a.csv"),
        ("C:\\someone\\a.csv", "a.csv"),
        ("data/traces/a.csv", "data/traces/a.csv"),
        ("f(x)/2 tokens/s, 1/2, hits / misses", "f(x)/2 tokens/s, 1/2, hits / misses"),
        (f"{SOMEWHERE}/k=v/alice(1)/a[2].csv, 5 tokens/s", "a[2].csv, 5 tokens/s"),
        (f"({SOMEWHERE}/a.csv), {SOMEWHERE}/b.csv:{SOMEWHERE}/c.csv", "(a.csv), c.csv"),
        (f"--trace '{SOMEWHERE}/my dir (2)/a b.csv' 1/2", "--trace 'a b.csv' 1/2"),
        (f"'--trace={SOMEWHERE}/my dir/a.csv' --json", "'--trace=a.csv' --json"),
        (f"{SOMEWHERE}/my\\ dir/a.csv", "a.csv"),
        (f"don't read {SOMEWHERE}/a.csv, it's slow", "don't read a.csv, it's slow"),
        ("ftp://host/dir/a.csv", "ftp://host/dir/a.csv"),
    ],
)
def test_absolute_paths_are_cut_to_their_last_part(text: str, kept: str) -> None:
    assert without_paths(text) == kept


@given(st.lists(st.text("ab0._-", max_size=5), min_size=2, max_size=5))
def test_no_folder_of_an_absolute_path_is_left(parts: list[str]) -> None:
    parts = [f"{part}z" for part in parts]
    assert without_paths("read /" + "/".join(parts) + " now") == f"read {parts[-1]} now"


def test_nothing_about_the_machine_leaks() -> None:
    given = {"trace": Path(SOMEWHERE) / "a.csv", "out": f"{SOMEWHERE}/my own (2)/a b.csv"}
    found = collect_origin(f"run {SOMEWHERE}/a.csv", 0, given | {"here": Path("data/a.csv")})
    told = json.dumps(found.as_dict()) + found.footer()
    assert "someone" not in told
    assert str(Path.cwd()) not in told
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", told)
    assert found.parameters == {"trace": "a.csv", "out": "a b.csv", "here": "data/a.csv"}


@pytest.mark.parametrize("value", [torch.tensor(1), [1, {2, 3}], {"a": object()}])
def test_a_parameter_that_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(StudyError, match=r"plain value: got a \w+; pass e.g. its .item\(\)"):
        collect_origin("run", 0, {"dcp_size": value})


def test_the_day_can_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert today() == "1970-01-02"
    for epoch in ("abc", "", "1e3", "253402300800", "9" * 5000):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        with pytest.raises(StudyError, match=r"^SOURCE_DATE_EPOCH counts .{,99}; unset it"):
            today()


def test_the_device_is_named_with_cores_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"cpu \(\d+ cores?\)", describe_device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index or 0}")
    monkeypatch.setattr(module, "driver", lambda: "570.1")
    assert describe_device("cuda:1") == "GPU 1 (driver 570.1)"
    assert re.fullmatch(r"cpu \(\d+ cores?\), GPU 0 \(driver 570.1\)", describe_device())
    monkeypatch.setattr(module, "driver", lambda: None)
    assert describe_device("cuda") == "GPU 0"


@pytest.mark.gpu
def test_the_gpu_of_this_machine_has_a_name_and_a_driver() -> None:
    assert re.fullmatch(r".+ \(driver [\d.]+\)", describe_device("cuda"))


def test_the_commit_is_that_of_the_checkout_and_dirty_where_its_code_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, notebook = tmp_path / "kvlab" / "__init__.py", tmp_path / "notebooks" / "a.ipynb"
    for path in (marker, notebook):
        path.parent.mkdir()
        path.write_text("1\n")
    monkeypatch.setattr(kvlab, "__file__", str(marker))
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    notebook.write_text("2\n")  # executing a notebook changes it
    assert re.fullmatch(r"[0-9a-f]{7,}", commit() or "")
    (tmp_path / "kvlab" / "new.py").write_text("2\n")
    assert re.fullmatch(r"[0-9a-f]{7,}\+dirty", commit() or "")
    inside = tmp_path / "site" / "kvlab" / "__init__.py"  # in somebody else's repository
    inside.parent.mkdir(parents=True)
    monkeypatch.setattr(kvlab, "__file__", str(inside))
    assert commit() is None
    monkeypatch.setattr(kvlab, "__file__", str(marker))
    monkeypatch.setenv("PATH", str(tmp_path))  # no git
    assert commit() is None
