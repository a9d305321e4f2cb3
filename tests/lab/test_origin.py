"""An origin says enough to make a number again, and nothing about whose machine it was."""

import json
import re
import shlex
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
from kvlab.lab.origin import Origin, collect_origin, commit, describe_device, without_paths

WORKED = Origin(
    command="kvlab owners",
    seed=0,
    parameters={"dcp_size": [1, 2], "share": 0.25},
    device="cpu (2 cores)",
    versions={"kvlab": "0.1.0", "python": "3.11.4"},
    commit="1a2b3c4",
    created="2026-03-01",
)


def test_the_footer_says_how_it_was_made_and_with_what() -> None:
    assert WORKED.footer() == (
        "kvlab owners · seed 0 · dcp_size=1/2, share=0.25\n"
        "kvlab 0.1.0 (1a2b3c4) · python 3.11.4 · cpu (2 cores) · 2026-03-01"
    )


def test_what_is_absent_is_left_out_of_the_footer() -> None:
    bare = Origin("run", None, {}, "cpu (1 core)", {"python": "3.11.4"}, None, "2026-03-01")
    assert bare.footer() == "run\npython 3.11.4 · cpu (1 core) · 2026-03-01"


def test_an_origin_survives_json() -> None:
    collected = collect_origin("kvlab crash", 3, {"pages": range(2), "nested": {"a": (1, None)}})
    again = Origin(**json.loads(json.dumps(collected.as_dict())))
    assert again == collected
    assert again.parameters == {"pages": [0, 1], "nested": {"a": [1, None]}}


def test_the_versions_name_what_decides_numbers_and_pictures() -> None:
    found = collect_origin("run", None, {}).versions
    assert {"kvlab", "python", "torch", "numpy", "matplotlib"} <= found.keys()
    assert found["kvlab"] == kvlab.__version__


# Paths are put together, so that no line of the repository looks like somebody's machine.
SOMEWHERE = "/" + "srv/someone/traces"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"kvlab report --trace {SOMEWHERE}/a.csv --jobs 2", "kvlab report --trace a.csv --jobs 2"),
        (f"--trace={SOMEWHERE}/a.csv", "--trace=a.csv"),
        (f"['{SOMEWHERE}/a.csv']", "['a.csv']"),
        ("~/traces/a.csv", "a.csv"),
        (f"file://{SOMEWHERE}/a.csv", "a.csv"),
        ("C:\\someone\\a.csv", "a.csv"),
        ("data/traces/a.csv", "data/traces/a.csv"),
        ("tokens/s, 1/2, a/b", "tokens/s, 1/2, a/b"),
        ("f(x)/2 tokens/s, hits / misses", "f(x)/2 tokens/s, hits / misses"),
        (f"{SOMEWHERE}/k=v/alice/a.csv", "a.csv"),
        (f"{SOMEWHERE}/alice(1)/a[2].csv, 5 tokens/s", "a[2].csv, 5 tokens/s"),
        (f"({SOMEWHERE}/a.csv), {SOMEWHERE}/b.csv:{SOMEWHERE}/c.csv", "(a.csv), b.csv:c.csv"),
        (f"--trace '{SOMEWHERE}/my dir (2)/a b.csv' 1/2", "--trace 'a b.csv' 1/2"),
        (f"'--trace={SOMEWHERE}/my dir/a.csv' --json", "'--trace=a.csv' --json"),
        (shlex.join(["kvlab", f"{SOMEWHERE}/it's mine/a.csv"]), "kvlab 'a.csv'"),
        (f"{SOMEWHERE}/my\\ dir/a.csv", "a.csv"),
        (
            f"don't read {SOMEWHERE}/a.csv at 5 tokens/s, it's slow",
            "don't read a.csv at 5 tokens/s, it's slow",
        ),
        ("ftp://host/dir/a.csv", "ftp://host/dir/a.csv"),
        ("~someone/traces/a.csv", "a.csv"),
    ],
)
def test_absolute_paths_are_cut_to_their_last_part(text: str, kept: str) -> None:
    assert without_paths(text) == kept


@given(st.lists(st.from_regex(r"[a-z0-9._-]*[a-z0-9]", fullmatch=True), min_size=2, max_size=5))
def test_no_folder_of_an_absolute_path_is_left(parts: list[str]) -> None:
    assert without_paths("read /" + "/".join(parts) + " now") == f"read {parts[-1]} now"


def test_nothing_about_the_machine_leaks() -> None:
    found = collect_origin(
        f"run {SOMEWHERE}/a.csv", 0, {"trace": Path(SOMEWHERE) / "a.csv", "out": f"{SOMEWHERE}/b"}
    )
    told = json.dumps(found.as_dict()) + found.footer()
    assert "someone" not in told
    assert str(Path.cwd()) not in told
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", told)
    assert found.parameters == {"trace": "a.csv", "out": "b"}


def test_a_parameter_that_is_a_path_may_hold_blanks() -> None:
    found = collect_origin("run", 0, {"out": f"{SOMEWHERE}/my own (2)/a b.csv"})
    assert found.parameters == {"out": "a b.csv"}


def test_a_relative_path_stays_whole() -> None:
    assert collect_origin("run", 0, {"trace": Path("data/a.csv")}).parameters == {
        "trace": "data/a.csv"
    }


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (torch.tensor(1), "dcp_size is a Tensor"),
        ([1, {2, 3}], r"dcp_size\[1\] is a set"),
        ({"a": object()}, r"dcp_size\['a'\] is a object"),
    ],
)
def test_a_parameter_that_is_not_plain_is_refused(value: object, where: str) -> None:
    with pytest.raises(StudyError, match=rf"plain value .*: {where}; pass e.g. its .item\(\)"):
        collect_origin("run", 0, {"dcp_size": value})


def test_an_origin_without_a_command_is_refused() -> None:
    with pytest.raises(StudyError, match="names the command that makes the figure again: got ' '"):
        collect_origin(" ", 0, {})


def test_the_day_can_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert collect_origin("run", 0, {}).created == "1970-01-02"


@pytest.mark.parametrize("epoch", ["abc", "", "-1", "1e3", "1_000", "253402300800", "9" * 5000])
def test_a_day_that_is_none_is_refused(epoch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    text = rf"^SOURCE_DATE_EPOCH in .* digits, 0 \.\. 253402300799: got '{epoch[:40]}.*; correct it"
    with pytest.raises(StudyError, match=text) as refused:
        collect_origin("run", 0, {})
    assert len(str(refused.value)) < 250


def test_the_last_day_that_can_be_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "253402300799")
    assert collect_origin("run", 0, {}).created == "9999-12-31"


def test_the_cpu_is_named_with_its_cores() -> None:
    assert re.fullmatch(r"cpu \(\d+ cores?\)", describe_device("cpu"))


def test_a_gpu_is_named_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(module, "_output", lambda *command: "570.1\n570.1")
    assert describe_device("cuda:1") == "GPU 1 (driver 570.1)"
    assert re.fullmatch(r"cpu \(\d+ cores?\), GPU 0 \(driver 570.1\)", describe_device())
    monkeypatch.setattr(module, "_output", lambda *command: None)
    assert describe_device("cuda") == "GPU 0"


@pytest.mark.gpu
def test_the_gpu_of_this_machine_has_a_name_and_a_driver() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    assert re.fullmatch(r".+ \(driver [\d.]+\)", describe_device("cuda"))


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(StudyError, match="a device is 'cpu', 'cuda' or 'cuda:N': got 'tpu'"):
        describe_device("tpu")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit that pretends to hold kvlab."""
    (tmp_path / "kvlab").mkdir()
    (tmp_path / "notebooks").mkdir()
    marker = tmp_path / "kvlab" / "__init__.py"
    for path in (marker, tmp_path / "notebooks" / "a.ipynb"):
        path.write_text("1\n")
    monkeypatch.setattr(kvlab, "__file__", str(marker))
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    return tmp_path


def test_the_commit_is_that_of_the_checkout(checkout: Path) -> None:
    assert re.fullmatch(r"[0-9a-f]{7,}", commit() or "")


def test_changed_code_makes_the_commit_dirty(checkout: Path) -> None:
    (checkout / "kvlab" / "new.py").write_text("2\n")
    assert re.fullmatch(r"[0-9a-f]{7,}\+dirty", commit() or "")


def test_a_changed_notebook_does_not_make_the_commit_dirty(checkout: Path) -> None:
    (checkout / "notebooks" / "a.ipynb").write_text("2\n")
    assert "dirty" not in (commit() or "dirty")


def test_a_package_inside_another_repository_has_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = checkout / "site" / "kvlab"
    inside.mkdir(parents=True)
    monkeypatch.setattr(kvlab, "__file__", str(inside / "__init__.py"))
    assert commit() is None


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert commit() is None
