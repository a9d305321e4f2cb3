"""The child that takes the crash upon itself: its exit code, its words, and what is refused."""

import subprocess
from pathlib import Path

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab import crash_child
from kvlab.lab.crash_child import crash_in_child, main

ROOT = Path(__file__).resolve().parents[2]
SIZES = ["--page-size", "2", "--num-pages", "9"]
CUDA_ASSERT = (
    "IndexKernel.cu:111: operator(): block: [0,0,0], thread: [0,0,0] Assertion "
    "`-sizes[i] <= index && index < sizes[i]` failed."
)


def test_the_child_ends_with_1_and_the_words_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = crash_in_child(DcpLayout(2, 2, 9))
    assert (found.device, found.exit_code) == ("cpu", 1)
    assert found.message == (
        "IndexError: index 28 is out of bounds for dimension 0 with size 20 (rank 0)"
    )
    assert found.tail == (found.message,)


@pytest.mark.gpu
def test_on_cuda_the_child_dies_of_the_assert_and_this_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    found = crash_in_child(DcpLayout(8, 64, 64), "cuda")
    assert found.exit_code != 0
    assert "assert" in found.message.lower()
    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.parametrize("c", [2, 3, 8])
def test_on_more_than_one_rank_the_copy_fails(c: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dcp-size", str(c), *SIZES]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("IndexError: index ")
    assert err.endswith("out of bounds for dimension 0 with size 20 (rank 0)\n")


def test_on_one_rank_the_copy_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dcp-size", "1", *SIZES]) == 0
    out, err = capsys.readouterr()
    assert out == "the copy of pages [7, 8, 9] went through: no index was out of range\n"
    assert err == ""


def test_the_line_with_the_assert_is_found_among_the_noise_of_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noise = "\n".join(f"line {i}" for i in range(20))

    def died(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -6, f"{CUDA_ASSERT}\n", f"{noise}\nAborted\n")

    monkeypatch.setattr(subprocess, "run", died)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = crash_in_child(DcpLayout(8, 64, 64), "cuda")
    assert (found.exit_code, found.message) == (-6, CUDA_ASSERT)
    assert found.tail == (*(f"line {i}" for i in range(15, 20)), "Aborted")


def test_a_child_that_says_nothing_has_an_empty_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -9, "", "")

    monkeypatch.setattr(subprocess, "run", killed)
    assert crash_in_child(DcpLayout(2, 2, 9)) == crash_child.ChildResult("cpu", -9, "", ())


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StudyError, match=r"device cuda:1 is not available .*use device='cpu'"):
        crash_in_child(DcpLayout(2, 2, 9), "cuda:1")


def test_a_pool_that_holds_no_request_is_refused() -> None:
    with pytest.raises(StudyError, match=r"requests of 3 pages: got num_pages=2; use more pages"):
        crash_in_child(DcpLayout(2, 2, 2))


def test_a_child_that_outlives_its_time_is_ended() -> None:
    with pytest.raises(StudyError, match=r"the child did not end within 0\.01 s"):
        crash_in_child(DcpLayout(2, 2, 9), timeout_s=0.01)
