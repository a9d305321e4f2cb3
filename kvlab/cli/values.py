"""Values of options: what argparse calls to read them. A refused value is bad usage, exit code 2.

sizes("1,2,4")        (1, 2, 4)
amounts("0.5,1")      (0.5, 1.0)
whole(1)("0")         refused: at least 1
"""

import argparse
import math
import re
from collections.abc import Callable

from kvlab.errors import StudyError
from kvlab.lab.owners import parse_sizes

MOST_RANKS = 4096


def whole(low: int) -> Callable[[str], int]:
    """A reader of whole numbers of at least ``low``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number: got {text!r}") from None
        if value < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}: got {text!r}")
        return value

    return read


def sizes(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, joined by commas."""
    try:
        return parse_sizes(text, "the list")
    except StudyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def amounts(text: str) -> tuple[float, ...]:
    """Numbers above 0, joined by commas."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < value < math.inf for value in found):
        raise argparse.ArgumentTypeError(
            f"the list must be numbers above 0 joined by commas: got {text!r}"
        )
    return found


def seconds(text: str) -> float:
    """One finite time above 0 seconds."""
    found = amounts(text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"must be one number of seconds: got {text!r}")
    return found[0]


def memory(text: str) -> float:
    """One finite amount of memory, 0 or more."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"must be one number of at least 0: got {text!r}")
    return found


def device(text: str) -> str:
    """A name of a device: cpu, cuda or cuda:N. Whether it is there is asked later."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", text):
        raise argparse.ArgumentTypeError(f"must be cpu, cuda or cuda:N: got {text!r}")
    return text


def require_ranks(dcp_size: int, instead: str) -> None:
    """Refuse more ranks than a command looks at one by one. Errors: StudyError."""
    if dcp_size > MOST_RANKS:
        raise StudyError(
            f"ranks are looked at one by one, at most {MOST_RANKS:,} of them: got --dcp-size "
            f"{dcp_size:,}; {instead}"
        )


def add_layout_arguments(parser: argparse.ArgumentParser, dcp: int, page: int) -> None:
    """Add ``--dcp-size`` and ``--page-size`` with their defaults."""
    parser.add_argument(
        "--dcp-size",
        type=int,
        default=dcp,
        metavar="C",
        help="ranks that share one request's KV (%(default)s)",
    )
    parser.add_argument(
        "--page-size",
        type=int,
        default=page,
        metavar="P",
        help="rows of one page in one rank's buffer (%(default)s)",
    )
