"""What `make` does before anything else: when it installs, when it does not, how it fails.

They run scripts/setup.sh in a small folder with a stand-in for Python that notes its calls and
installs nothing.
"""

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    *("awk", "bash", "cat", "cp", "cut", "df", "dirname", "env", "find", "flock", "grep", "kill"),
    *("ls", "make", "mkdir", "mv", "rm", "sleep", "sha256sum", "shasum", "tail"),
)

# `-m venv DIR` copies itself into DIR; `-m pip` prints $PIP_SAYS and leaves with $PIP_EXIT, or
# ends the set-up that called it, as a closed terminal would.
STAND_IN = """\
#!/usr/bin/env bash
case "$1 $2" in
    "-V "*) echo "Python 3.11.0" ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip")
        echo "$*" >>calls
        sleep "${PIP_TAKES:-0}"
        if [ -n "$PIP_KILLS" ]; then kill -KILL "$PPID"; fi
        echo "$PIP_SAYS"
        exit "${PIP_EXIT:-0}" ;;
esac
"""


class Checkout:
    """A folder with the set-up in it, and a PATH of its own that holds one stand-in Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            if found := shutil.which(tool):
                (self.bin / tool).symlink_to(found)
        self.python = self.bin / "python3.11"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        (root / "scripts").mkdir()
        for name in ("setup.sh", "needs.py"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts")
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root)

    def run(self, *command: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """Run ``command`` (default: the set-up) here, under ``env`` and this folder's PATH only."""
        return subprocess.run(
            command or ("scripts/setup.sh",),
            cwd=self.root,
            env={"PATH": str(self.bin), "KVLAB_MIN_FREE_MB": "1", **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def pip_calls(self) -> list[str]:
        """The command lines that pip was called with so far."""
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_torch_is_installed_first_all_under_the_pins_and_a_second_run_installs_nothing(
    checkout: Checkout,
) -> None:
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    first, second = checkout.pip_calls()
    assert first.endswith("-c constraints.txt torch")
    assert second.endswith("-c constraints.txt -e .[dev]")
    (checkout.root / "pyproject.toml").touch()  # newer, and the same
    assert checkout.run().stdout == ""
    assert len(checkout.pip_calls()) == 2


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_pin_brings_the_environment_up_to_date_in_place(
    checkout: Checkout, name: str
) -> None:
    checkout.run()
    kept = checkout.root / ".venv/kept"
    kept.touch()
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.run(PIP_EXIT="1").returncode == 1  # refused by pip, and tried again
    assert "the pins changed" in checkout.run().stdout
    assert kept.exists()
    assert checkout.run().stdout == ""


def test_a_moved_checkout_is_set_up_again(checkout: Checkout) -> None:
    checkout.run()
    moved = checkout.root / "moved"
    moved.mkdir()
    for name in ("scripts", "pyproject.toml", "constraints.txt", ".venv"):
        (checkout.root / name).rename(moved / name)
    assert checkout.run("moved/scripts/setup.sh").stdout != ""


@pytest.mark.parametrize("update", [False, True])
def test_an_interrupted_set_up_or_update_starts_again_from_an_empty_folder(
    checkout: Checkout, update: bool
) -> None:
    if update:
        checkout.run()
        (checkout.root / "constraints.txt").write_text("torch==2.9.0\n")
    assert checkout.run(PIP_KILLS="yes").returncode != 0
    half = checkout.root / ".venv/half-installed"
    half.touch()
    assert "is ready" in checkout.run().stdout
    assert not half.exists()


def test_of_two_set_ups_at_once_the_second_waits_and_installs_nothing(checkout: Checkout) -> None:
    with ThreadPoolExecutor(2) as both:
        asked = [both.submit(checkout.run, PIP_TAKES="0.5") for _ in range(2)]
        done = [one.result() for one in asked]
    assert [one.returncode for one in done] == [0, 0]
    assert len(checkout.pip_calls()) == 2
    told = "kvlab: another set-up is under way in this folder; waiting for it\n"
    assert sorted((one.stdout != "", one.stderr) for one in done) == [(False, told), (True, "")]


def test_a_folder_that_somebody_else_made_is_left_alone(checkout: Checkout) -> None:
    precious = checkout.root / "mine/precious"
    precious.parent.mkdir()
    precious.touch()
    refused = checkout.run(VENV="mine")
    assert refused.returncode == 1
    assert "mine was not made by this set-up and is left alone" in refused.stderr
    assert precious.exists()


def last_sentence(failed: "subprocess.CompletedProcess[str]") -> str:
    """The last line on standard error of a set-up that failed, without its ``kvlab: ``."""
    assert failed.returncode != 0
    assert not (failed.stdout + failed.stderr).count("Traceback")
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("kvlab: ")
    return last.removeprefix("kvlab: ")


def test_without_python_it_says_which_one_to_install(checkout: Checkout) -> None:
    checkout.python.write_text('#!/usr/bin/env bash\nif [ "$1" = -c ]; then exit 1; fi\n')
    sentence = last_sentence(checkout.run(PYTHON="python3.11"))  # too old
    assert "looked for: python3.11)" in sentence
    checkout.python.unlink()
    sentence = last_sentence(checkout.run())
    assert sentence.startswith("no Python 3.11 or newer with venv was found")
    assert "python3-venv" in sentence
    assert "PYTHON=" in sentence


def test_on_a_full_disk_it_says_how_much_is_needed_and_installs_nothing(
    checkout: Checkout,
) -> None:
    sentence = last_sentence(checkout.run(KVLAB_MIN_FREE_MB="999999999"))
    assert sentence.startswith("the disk is too full: set-up needs 999999999 MB")
    assert "VENV=" in sentence
    assert checkout.pip_calls() == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ERROR: [Errno 28] No space left on device", "the disk is full: pip could not write"),
        ("ERROR: No matching distribution found for torch", "pip could not install torch: read"),
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError: Failed to establish "
            "a new connection'",
            "no network: pip could not reach its package index for torch",
        ),
    ],
)
def test_what_pip_said_is_shown_and_told_in_a_sentence(
    checkout: Checkout, said: str, told: str
) -> None:
    failed = checkout.run(PIP_EXIT="1", PIP_SAYS=said)
    assert last_sentence(failed).startswith(told)
    assert said in failed.stderr
    assert said in (checkout.root / "build/setup.log").read_text()


def test_every_target_is_listed_sets_up_first_and_stops_when_that_fails(checkout: Checkout) -> None:
    listed = checkout.run("make").stdout
    for target in ("report", "test", "gpu", "lab", "bench", "check", "format"):
        assert f"make {target} " in listed
        failed = checkout.run("make", target, KVLAB_MIN_FREE_MB="999999999")
        assert (failed.returncode != 0, failed.stdout) == (True, ""), target
        assert "the disk is too full" in failed.stderr


def test_an_interpreter_of_ones_own_is_used_as_it_is(checkout: Checkout) -> None:
    done = checkout.run("make", "setup", KVLAB_PYTHON=sys.executable)
    assert done.returncode == 0
    assert not (checkout.root / ".venv").exists()


def test_make_gpu_without_a_gpu_fails_with_one_sentence_and_runs_no_test(
    checkout: Checkout,
) -> None:
    failed = checkout.run("make", "gpu", KVLAB_PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="")
    assert failed.returncode != 0
    assert failed.stdout == ""
    said = [line for line in failed.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert said[0].startswith("kvlab: make gpu needs a CUDA device and torch ")
    assert said[0].endswith("with KVLAB_PYTHON=PATH if that has a torch of its own")


@pytest.mark.parametrize("target", ["gpu", "bench"])
def test_an_interpreter_that_lacks_or_has_an_older_library_is_told_so_in_one_sentence(
    checkout: Checkout, target: str
) -> None:
    told = (ROOT / "pyproject.toml").read_text().replace("pandas>=3.0", "pandas>=99.1")
    (checkout.root / "pyproject.toml").write_text(told.replace('"pytest>=9.0"', '"pytest>=99"'))
    failed = checkout.run("make", target, KVLAB_PYTHON=sys.executable)
    assert failed.returncode != 0
    assert failed.stdout == ""
    (said,) = [line for line in failed.stderr.splitlines() if not line.startswith("make")]
    assert said.startswith(f"kvlab: make {target} needs pandas>=99.1 (")
    assert ("pytest>=99 (" in said) == (target == "gpu")
    assert said.endswith("or without a network carry the wheels there as CONTRIBUTING.md says")


def test_a_bare_interpreter_is_told_everything_that_it_lacks(checkout: Checkout) -> None:
    bare = checkout.bin / "bare"
    bare.write_text(f'#!/usr/bin/env bash\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    failed = checkout.run("make", "gpu", KVLAB_PYTHON=str(bare))
    assert "needs torch>=" in failed.stderr
    assert " and hypothesis>=" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_program_without_a_library_is_a_sentence() -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "kvlab", "doctor"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: kvlab needs ")
    assert ran.stderr.count("\n") == 1


def test_the_wheels_to_carry_are_those_that_make_gpu_asks_for() -> None:
    recipe = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (carried,) = re.findall(r'^NEEDED="(.*)"$', recipe, re.MULTILINE)
    ask = (
        "from needs import TARGETS, lacking; print(*(name for name, _ in lacking(TARGETS['gpu'])))"
    )
    bare = subprocess.run(
        [sys.executable, "-S", "-c", ask],
        env={"PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        check=True,
    )
    torch, *others = bare.stdout.split()
    assert torch.startswith("torch>=")
    assert carried.split() == others
