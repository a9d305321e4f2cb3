"""Run the crash where it cannot take the notebook with it: in a child process.

On CUDA an index past the buffer is a device-side assert: the CUDA context is lost and every later
call of the process fails. So the study runs in a child, and its exit code and last lines are what
the notebook shows. On CPU the same path ends in an ``IndexError``.

``python -m kvlab.lab.crash_child --dcp-size 8 --page-size 64 --num-pages 1024 --device cuda``
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass

import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash_node import BeforeFix, CopyError, CrashNode

PAGES = 3  # of each request in the child's pool


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How the child ended: its exit code, the line that tells why, and the tail of its output.

    ``output``: every line that it printed and that is not blank, standard output first.
    """

    device: str
    exit_code: int
    message: str
    tail: tuple[str, ...]
    output: tuple[str, ...] = ()


def crash_in_child(layout: DcpLayout, device: str = "cpu", timeout_s: float = 300) -> ChildResult:
    """Retract from a full pool with the code before the fix, in a child process.

    Errors: StudyError when the device is not there, the pool holds no request of two and a bit
    pages, or the child outlives ``timeout_s``.
    """
    if layout.num_pages < PAGES:
        raise StudyError(
            f"the full pool of the child holds requests of {PAGES} pages: got num_pages="
            f"{layout.num_pages}; use more pages"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise StudyError(
            f"device {device} is not available on this machine; use device='cpu', or read the "
            f"recorded run where one is shown"
        )
    sizes = (layout.dcp_size, layout.page_size, layout.num_pages)
    names = ("--dcp-size", "--page-size", "--num-pages")
    arguments = [text for pair in zip(names, map(str, sizes), strict=True) for text in pair]
    command = [sys.executable, "-m", __name__, *arguments, "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"the child did not end within {timeout_s} s; use a smaller pool"
        ) from None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    telling = [x for x in lines if "assert" in x.lower() or "out of bounds" in x]
    return ChildResult(
        device,
        done.returncode,
        telling[0].strip() if telling else (lines[-1].strip() if lines else ""),
        tuple(lines[-6:]),
        tuple(lines),
    )


def main(argv: list[str] | None = None) -> int:
    """The child: exit 0 if the copy went through, 1 with torch's own words if it did not."""
    parser = argparse.ArgumentParser(prog="crash_child", description=__doc__)
    for name in ("--dcp-size", "--page-size", "--num-pages"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(argv)
    layout = DcpLayout(given.dcp_size, given.page_size, given.num_pages)
    tokens = (PAGES - 1) * layout.widened_page_size + 1
    node = CrashNode(layout, layout.num_pages // layout.pages_for(tokens), tokens, given.device)
    victim = node.victim()
    try:
        BeforeFix(node.cells, victim, node.slots(victim))
        if given.device.startswith("cuda"):
            torch.cuda.synchronize()
    except CopyError as failed:
        print(f"IndexError: {failed.text} (rank {failed.rank})", file=sys.stderr)
        return 1
    print(f"the copy of pages {list(node.pages(victim))} went through: no index was out of range")
    return 0


if __name__ == "__main__":
    sys.exit(main())
