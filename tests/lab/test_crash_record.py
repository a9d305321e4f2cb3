"""The recording of the crash on CUDA: what is kept, what is scrubbed, and what is refused.

The child is made up: no GPU is needed, and nothing here is a figure of one.
"""

import getpass
import json
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab import crash_record
from kvlab.lab.crash_child import ChildResult, crash_in_child
from kvlab.lab.crash_record import (
    COMMAND,
    CrashRecord,
    crash_words,
    make_record,
    read_record,
    recorded_crash,
    shortened,
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
    f'  File "{HOME}/kvlab/lab/crash_child.py", line 96, in main',
    "torch.AcceleratorError: CUDA error: device-side assert triggered",
)
OUTPUT = (*(ASSERT.format(i) for i in range(500)), *TAIL)
CHILD = ChildResult("cuda", 1, OUTPUT[0], OUTPUT[-6:], OUTPUT)
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


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose GPU and driver are made up."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A made-up GPU")
    monkeypatch.setattr(crash_record, "driver", lambda: "123.45")


@pytest.mark.usefixtures("gpu")
def test_a_record_has_device_driver_versions_day_and_pool() -> None:
    made = make_record(LAYOUT, CHILD)
    assert (made.device, made.driver, made.cuda) == ("A made-up GPU", "123.45", torch.version.cuda)
    assert (made.dcp_size, made.page_size, made.num_pages) == (8, 64, 1024)
    assert (made.exit_code, made.assert_lines, made.command) == (1, 500, COMMAND)
    assert made.torch.split("+")[0] == torch.__version__.split("+")[0]
    assert len(made.created) == 10


@pytest.mark.usefixtures("gpu")
def test_no_path_of_the_machine_is_kept_and_the_words_of_the_assert_are() -> None:
    made = make_record(LAYOUT, CHILD)
    text = json.dumps(asdict(made))
    for part in (HOME, "somebody", "my project", "/pytorch/aten"):
        assert part not in text
    assert 'File "crash_child.py", line 96, in main' in made.output[-2]
    assert made.message.startswith("IndexKernel.cu:111: operator(): block: [0,0,0]")
    assert "Assertion `-sizes[i] <= index && index < sizes[i]` failed." in made.message


@pytest.mark.usefixtures("gpu")
def test_neither_host_nor_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7.lab.example")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    line = "[W1130 node7.lab.example X.h:122] node7:12 ada@node7: assertion in adaptive cuda_ada"
    made = make_record(LAYOUT, replace(CHILD, output=(line,), message=line))
    want = "[W1130 HOST X.h:122] HOST:12 USER@HOST: assertion in adaptive cuda_ada"
    assert (made.output, made.message) == ((want,), want)


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert crash_record.scrubbed("device-side assert in /a/b.cu") == "device-side assert in b.cu"


@pytest.mark.usefixtures("gpu")
def test_of_thousands_of_asserts_the_first_and_the_last_lines_are_kept_and_counted() -> None:
    made = make_record(LAYOUT, CHILD)
    assert made.output[0].startswith("IndexKernel.cu:111")
    assert "... 467 lines left out ..." in made.output
    assert made.output[-1] == TAIL[-1]
    assert len(made.output) == 37


@pytest.mark.parametrize("n", [0, 1, 5])
def test_few_lines_are_kept_all(n: int) -> None:
    lines = tuple(map(str, range(n)))
    assert shortened(lines, 2, 2) == lines


def test_of_six_lines_four_and_a_count_are_kept() -> None:
    assert shortened("abcdef", 2, 2) == ("a", "b", "... 2 lines left out ...", "e", "f")


@pytest.mark.usefixtures("gpu")
def test_what_is_recorded_is_what_is_read(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "crash-cuda.json"
    place.parent.mkdir()
    made = make_record(LAYOUT, CHILD)
    write_record(made, place)
    assert read_record(place) == made
    assert [path.name for path in place.parent.iterdir()] == ["crash-cuda.json"]


@pytest.mark.gpu
def test_on_a_gpu_the_assert_is_recorded_and_this_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    made = make_record(LAYOUT, crash_in_child(LAYOUT, "cuda"))
    write_record(made, tmp_path / "crash-cuda.json")
    assert read_record(tmp_path / "crash-cuda.json") == made
    assert made.exit_code != 0
    assert made.assert_lines > 0
    assert made.device == torch.cuda.get_device_name(0)
    assert str(ROOT) not in (tmp_path / "crash-cuda.json").read_text()
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_a_child_on_the_cpu_is_not_recorded() -> None:
    with pytest.raises(StudyError, match=r"of a crash on CUDA: .* on 'cpu'; .* --device cuda"):
        make_record(LAYOUT, replace(CHILD, device="cpu"))


def test_a_child_that_went_through_is_not_recorded() -> None:
    with pytest.raises(StudyError, match=r"is of a crash: .*exit code 0 and 'went through'; use"):
        make_record(LAYOUT, replace(CHILD, exit_code=0, message="went through"))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"a file that can be written: .* name another file with"):
        write_record(RECORD, tmp_path / "missing" / "crash-cuda.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "holds a recording as JSON: "),
        ("[]", "it lacks device, driver, torch, .* and has besides none; make it again"),
        (json.dumps(asdict(RECORD) | {"host": "x"}), "lacks none and has besides host; make"),
        (json.dumps(asdict(RECORD) | {"exit_code": "1"}), "exit_code is of type whole number: got"),
        (json.dumps(asdict(RECORD) | {"exit_code": True}), "exit_code is of type whole number"),
        (json.dumps(asdict(RECORD) | {"output": "x"}), "output is of type list of lines: got 'x'"),
        (json.dumps(asdict(RECORD) | {"device": None}), "device is of type text: got None"),
        (json.dumps(asdict(RECORD) | {"driver": 5}), "driver is of type text or null: got 5"),
        (json.dumps(asdict(RECORD) | {"exit_code": 0}), "a recorded crash has an exit_code: got 0"),
        ("[" * 100_000, "holds a recording as JSON: maximum recursion"),
        (json.dumps(asdict(RECORD) | {"device": " "}), "device names a GPU: got ' '; make it"),
        (json.dumps(asdict(RECORD) | {"created": "soon"}), "created is a day, .* got 'soon'"),
        (json.dumps(asdict(RECORD) | {"dcp_size": 1}), "dcp_size is at least 2: .* got 1"),
        (json.dumps(asdict(RECORD) | {"page_size": 0}), "page_size is at least 1: got 0"),
        (json.dumps(asdict(RECORD) | {"num_pages": -4}), "num_pages is at least 1: got -4"),
        (json.dumps(asdict(RECORD) | {"assert_lines": -1}), "assert_lines counts lines, at least"),
        (json.dumps(asdict(RECORD) | {"output": []}), r"output has the lines .* got \[\]"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_with_the_reason(
    text: str, sentence: str, tmp_path: Path
) -> None:
    place = tmp_path / "crash-cuda.json"
    place.write_text(text)
    with pytest.raises(StudyError, match=rf"crash-cuda\.json.*{sentence}"):
        read_record(place)


def test_a_recording_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"crash-cuda\.json cannot be read: No such file"):
        read_record(tmp_path / "crash-cuda.json")


def test_the_project_has_a_recording_that_can_be_read_or_none() -> None:
    found = recorded_crash()
    assert found is None or found.exit_code != 0


def test_a_gpu_at_hand_is_shown_live_even_if_there_is_a_recording() -> None:
    text = crash_words(CHILD, RECORD)
    assert text.startswith("measured here, on cuda: exit code 1\n")
    assert "recorded" not in text
    assert "somebody" not in text
    assert text.endswith("CUDA error: device-side assert triggered")


def test_without_a_gpu_the_recording_is_shown_with_device_and_driver() -> None:
    on_cpu = replace(CHILD, device="cpu")
    where = "A made-up GPU, driver 123.45, torch 2.11.0 (CUDA 12.8), commit 1a2b3c4, 2026-01-02"
    assert crash_words(on_cpu, RECORD) == "\n".join(
        [f"recorded on {where}: exit code 1", *RECORD.output]
    )
    bare = replace(RECORD, driver=None, cuda=None, commit=None)
    assert bare.where() == "A made-up GPU, driver not told, torch 2.11.0, 2026-01-02"


def test_without_either_one_sentence_says_which_command_makes_one() -> None:
    text = crash_words(replace(CHILD, device="cpu"), None)
    assert text.startswith("No run of this crash on CUDA is recorded yet, and none is claimed")
    assert f"`{COMMAND}`" in text
    assert "\n" not in text
    assert crash_words(None, None) == text
