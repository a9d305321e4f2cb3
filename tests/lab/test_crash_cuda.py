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
    crash_in_child,
    crash_words,
    main,
    make_record,
    read_record,
    recorded_crash,
    scrubbed,
    shortened,
    write_record,
)

ROOT = Path(__file__).resolve().parents[2]
SIZES = ["--page-size", "2", "--num-pages", "9"]
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
RECORD = CrashRecord(
    device="A made-up GPU",
    driver="123.45",
    torch="2.11.0",
    cuda="12.8",
    commit="1a2b3c4",
    created="2026-01-02",
    command=COMMAND,
    dcp_size=8,
    page_size=64,
    num_pages=1024,
    exit_code=1,
    message="IndexKernel.cu:111: Assertion failed.",
    assert_lines=2,
    output=("IndexKernel.cu:111: Assertion failed.", "CUDA error: device-side assert triggered"),
)


def test_the_child_ends_with_1_and_the_words_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = crash_in_child(DcpLayout(2, 2, 9))
    assert (found.device, found.exit_code) == ("cpu", 1)
    assert found.message == (
        "IndexError: index 28 is out of bounds for dimension 0 with size 20 (rank 0)"
    )
    assert found.tail == found.output == (found.message,)


@pytest.mark.gpu
def test_on_a_gpu_the_assert_is_recorded_and_this_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    child = crash_in_child(LAYOUT, "cuda")
    assert "assert" in child.message.lower()
    made = make_record(LAYOUT, child)
    write_record(made, tmp_path / "crash-cuda.json")
    assert read_record(tmp_path / "crash-cuda.json") == made
    assert made.exit_code != 0
    assert made.assert_lines > 0
    assert made.device == torch.cuda.get_device_name(0)
    assert str(ROOT) not in (tmp_path / "crash-cuda.json").read_text()
    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.parametrize("c", [1, 2, 8])
def test_on_more_than_one_rank_the_copy_fails(c: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dcp-size", str(c), *SIZES]) == (c > 1)
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


@pytest.mark.parametrize(
    ("pages", "options", "words"),
    [
        (9, {"device": "cuda:1"}, r"device cuda:1 is not available .*use device='cpu'"),
        (2, {}, r"requests of 3 pages: got num_pages=2; use more pages"),
        (9, {"timeout_s": 0.01}, r"the child did not end within 0\.01 s"),
    ],
)
def test_a_child_that_cannot_run_or_end_is_refused(
    pages: int, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StudyError, match=words):
        crash_in_child(DcpLayout(2, 2, pages), **options)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> CrashRecord:
    """The record of the child on a machine whose GPU, driver and names are made up."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A made-up GPU")
    monkeypatch.setattr("kvlab.lab.crash_cuda.driver", lambda: "123.45")
    return make_record(LAYOUT, CHILD)


def test_a_record_has_device_driver_versions_day_and_pool(made: CrashRecord) -> None:
    assert (made.device, made.driver, made.cuda) == ("A made-up GPU", "123.45", torch.version.cuda)
    assert (made.dcp_size, made.page_size, made.num_pages) == (8, 64, 1024)
    assert (made.exit_code, made.assert_lines, made.command) == (1, 500, COMMAND)
    assert made.torch.split("+")[0] == torch.__version__.split("+")[0]
    assert "... 467 lines left out ..." in made.output
    assert len(made.output) == 37


def test_no_path_of_the_machine_is_kept_and_the_words_of_the_assert_are(made: CrashRecord) -> None:
    text = json.dumps(asdict(made))
    for part in (HOME, "somebody", "my project", "/pytorch/aten"):
        assert part not in text
    assert 'File "crash_cuda.py", line 96, in main' in made.output[-2]
    assert made.message.startswith("IndexKernel.cu:111: operator(): block: [0,0,0]")
    assert "Assertion `-sizes[i] <= index && index < sizes[i]` failed." in made.message


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


def test_of_many_lines_the_first_and_last_are_kept_and_the_others_counted() -> None:
    assert shortened("abcde", 2, 2) == tuple("abcde")
    assert shortened("abcdef", 2, 2) == ("a", "b", "... 2 lines left out ...", "e", "f")


def test_what_is_recorded_is_what_is_read(tmp_path: Path) -> None:
    write_record(RECORD, tmp_path / "crash-cuda.json")
    assert read_record(tmp_path / "crash-cuda.json") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["crash-cuda.json"]
    with pytest.raises(StudyError, match=r"a file that can be written: .* name another file with"):
        write_record(RECORD, tmp_path / "crash-cuda.json" / "x" / "crash-cuda.json")


@pytest.mark.parametrize("change", [{"device": "cpu"}, {"exit_code": 0}])
def test_a_child_that_did_not_crash_on_cuda_is_not_recorded(change: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="a recording is of a crash on CUDA: this child ended on"):
        make_record(LAYOUT, replace(CHILD, **change))


@pytest.mark.parametrize(
    "given",
    [
        "{",
        "[]",
        "[" * 100_000,
        *({"host": "x"}, {"exit_code": "1"}, {"exit_code": True}, {"exit_code": 0}),
        *({"output": "x"}, {"output": []}, {"device": None}, {"driver": 5}),
    ],
)
def test_a_file_that_is_no_recording_is_refused(
    given: str | dict[str, Any], tmp_path: Path
) -> None:
    place = tmp_path / "crash-cuda.json"
    place.write_text(given if isinstance(given, str) else json.dumps(asdict(RECORD) | given))
    with pytest.raises(StudyError, match=r"crash-cuda\.json holds one recorded crash as JSON: "):
        read_record(place)
    with pytest.raises(StudyError, match=r"No such file or directory; make it again with"):
        read_record(tmp_path / "none.json")


def test_the_crash_is_shown_live_else_recorded_else_with_the_command_that_makes_one() -> None:
    live = crash_words(CHILD, RECORD)
    assert live.startswith("measured here, on cuda: exit code 1\n")
    assert "somebody" not in live
    assert live.endswith("CUDA error: device-side assert triggered")
    on_cpu = replace(CHILD, device="cpu")
    where = "A made-up GPU, driver 123.45, torch 2.11.0 (CUDA 12.8), commit 1a2b3c4, 2026-01-02"
    assert crash_words(on_cpu, RECORD) == "\n".join(
        [f"recorded on {where}: exit code 1", *RECORD.output]
    )
    bare = replace(RECORD, driver=None, cuda=None, commit=None)
    assert bare.where() == "A made-up GPU, driver not told, torch 2.11.0, 2026-01-02"
    neither = crash_words(on_cpu, None)
    assert neither.startswith("No run of this crash on CUDA is recorded yet, and none is claimed")
    assert neither == crash_words(None, None)
    found = recorded_crash()
    assert found is None or found.exit_code != 0
