"""The crash in a child, and its recording: exit code and words, what is scrubbed and refused.

Where a GPU would speak the child is made up, and nothing here is a figure of one.
"""

import getpass
import json
import socket
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash_cuda import (
    COMMAND,
    ChildResult,
    CrashRecord,
    crash,
    crash_in_child,
    crash_words,
    make_record,
    read_record,
    recorded_crash,
    scrubbed,
    write_record,
)

ROOT = Path(__file__).resolve().parents[2]
LAYOUT = DcpLayout(8, 64, 1024)
HOME = "/{}/somebody/my project".format("home")
ASSERT = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [{},0,0], thread: "
    "[0,0,0] Assertion `-sizes[i] <= index && index < sizes[i]` failed."
)
TAIL = (
    "Traceback (most recent call last):",
    f'  File "{HOME}/kvlab/lab/crash_cuda.py", line 96, in main',
    "torch.AcceleratorError: CUDA error: device-side assert triggered",
)
OUTPUT = (*(ASSERT.format(i) for i in range(500)), *TAIL)
CHILD = ChildResult("cuda", 1, OUTPUT[0], OUTPUT)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> CrashRecord:
    """The record of the child on a machine whose GPU, driver and names are made up."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A made-up GPU")
    monkeypatch.setattr("kvlab.lab.origin.driver", lambda: "123.45")
    return make_record(LAYOUT, CHILD)


@pytest.mark.gpu
def test_on_a_gpu_the_child_dies_of_an_assert_is_recorded_and_this_process_lives(
    tmp_path: Path,
) -> None:
    child = crash_in_child(LAYOUT, "cuda")
    assert child.exit_code != 0
    assert "assert" in child.message.lower()
    made = make_record(LAYOUT, child)
    write_record(made, tmp_path / "crash-cuda.json")
    assert read_record(tmp_path / "crash-cuda.json") == made
    assert torch.cuda.get_device_name(0) in made.where()
    assert str(ROOT) not in (tmp_path / "crash-cuda.json").read_text()
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_the_child_ends_with_1_and_the_words_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = crash_in_child(DcpLayout(2, 2, 9))
    assert (found.device, found.exit_code) == ("cpu", 1)
    assert found.message == (
        "IndexError: index 28 is out of bounds for dimension 0 with size 20 (rank 0)"
    )
    assert found.tail == found.output == (found.message,)


@pytest.mark.parametrize("c", [1, 2, 8])
def test_on_more_than_one_rank_the_copy_fails(c: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert crash(c, 2, 9, "cpu") == (c > 1)
    out, err = capsys.readouterr()
    if c == 1:
        assert out == "the copy of pages [7, 8, 9] went through: no index was out of range\n"
    else:
        assert err.startswith("IndexError: index ")
        assert err.endswith("out of bounds for dimension 0 with size 20 (rank 0)\n")


def test_the_line_with_the_assert_is_found_among_the_noise_of_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = "\n".join(f"line {i}" for i in range(20))
    done = subprocess.CompletedProcess([], -6, f"{TAIL[-1]}\n", f"{noise}\nAborted\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = crash_in_child(LAYOUT, "cuda")
    assert (found.exit_code, found.message) == (-6, TAIL[-1])
    assert found.tail == (*(f"line {i}" for i in range(15, 20)), "Aborted")
    done.stdout = done.stderr = ""
    assert crash_in_child(LAYOUT, "cuda") == ChildResult("cuda", -6, "", ())


def test_a_child_that_cannot_run_or_end_and_one_that_did_not_crash_on_cuda_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StudyError, match="device cuda:1 is not on this machine"):
        crash_in_child(LAYOUT, "cuda:1")
    with pytest.raises(StudyError, match=r"the child did not end within 0\.01 s"):
        crash_in_child(LAYOUT, timeout_s=0.01)
    for child in (replace(CHILD, device="cpu"), replace(CHILD, exit_code=0)):
        with pytest.raises(StudyError, match="a recording is of a crash on CUDA: this child"):
            make_record(LAYOUT, child)


def test_a_record_says_where_it_crashed_and_keeps_no_path_of_the_machine(made: CrashRecord) -> None:
    assert made.origin.device == "A made-up GPU (driver 123.45)"
    assert made.origin.device in made.where()
    assert f"torch {torch.__version__}" in made.where()
    assert made.origin.command == COMMAND
    assert {"dcp_size": 8, "page_size": 64, "num_pages": 1024}.items() <= (
        made.origin.parameters.items()
    )
    assert made.child.exit_code == 1
    assert "... 467 lines left out ..." in made.child.output
    text = json.dumps(asdict(made))
    for part in (HOME, "somebody", "my project", "/pytorch/aten"):
        assert part not in text
    assert 'File "crash_cuda.py", line 96, in main' in made.child.output[-2]
    assert made.child.message.startswith("IndexKernel.cu:111: operator(): block: [0,0,0]")


def test_neither_host_nor_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    line = "[W1130 node7.lab.example X.h:122] node7:12 ada@node7: assertion in adaptive cuda_ada"
    want = "[W1130 HOST X.h:122] HOST:12 USER@HOST: assertion in adaptive cuda_ada"
    assert scrubbed(line) == want

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert scrubbed("device-side assert in /a/b.cu") == "device-side assert in b.cu"


def test_what_is_recorded_is_what_is_read_and_a_file_that_is_no_recording_is_refused(
    made: CrashRecord, tmp_path: Path
) -> None:
    place = tmp_path / "crash-cuda.json"
    write_record(made, place)
    assert read_record(place) == made
    assert [path.name for path in tmp_path.iterdir()] == ["crash-cuda.json"]
    with pytest.raises(StudyError, match=r"cannot be written: .*; name another place"):
        write_record(made, place / "x" / "crash-cuda.json")
    told: Any = asdict(made)
    changes: tuple[dict[str, Any], ...] = ({"exit_code": 0}, {"output": []}, {"host": "x"})
    for child in changes:
        place.write_text(json.dumps(told | {"child": told["child"] | child}))
        with pytest.raises(StudyError, match=r"crash-cuda\.json holds one recorded crash: "):
            read_record(place)
    for text in ("{", "[]", "[" * 100_000):
        place.write_text(text)
        with pytest.raises(StudyError, match=r"crash-cuda\.json holds one recorded crash: "):
            read_record(place)
    with pytest.raises(StudyError, match=r"No such file or directory: .*; make it again with"):
        read_record(tmp_path / "none.json")


def test_the_crash_is_shown_live_else_recorded_else_with_the_command_that_makes_one(
    made: CrashRecord,
) -> None:
    live = crash_words(CHILD, made)
    assert live.startswith("measured here, on cuda: exit code 1\n")
    assert "somebody" not in live
    assert live.endswith("CUDA error: device-side assert triggered")
    on_cpu = replace(CHILD, device="cpu")
    told = crash_words(on_cpu, made)
    assert told.startswith(f"recorded on {made.where()}: exit code 1\nIndexKernel.cu")
    neither = crash_words(on_cpu, None)
    assert neither.startswith("No run of this crash on CUDA is recorded yet, and none is claimed")
    assert neither == crash_words(None, None)
    found = recorded_crash()
    assert found is None or found.child.exit_code != 0
