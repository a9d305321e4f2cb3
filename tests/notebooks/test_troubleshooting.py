"""What the page for troubleshooting says can be done: its test tells a fix from the defect."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.index import DcpLayout, raw_use_census

PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "TROUBLESHOOTING.md"
Copy = Callable[..., Any]


@pytest.fixture(scope="module")
def check() -> Copy:
    """The function ``check`` of the page, as a reader pastes it."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    names: dict[str, Any] = {}
    exec(block, names)  # our own page
    found: Copy = names["check"]
    return found


def fixed(ids: torch.Tensor, rank: int, c: int) -> torch.Tensor:
    """The rows of ``ids`` on ``rank``, as the page says it."""
    return ids[ids % c == rank] // c


def pair(out: Copy, into: Copy) -> tuple[Copy, Copy]:
    """The two functions of a node that names its rows by ``out`` and ``into``."""

    def copy_out(buffer: torch.Tensor, ids: torch.Tensor, rank: int) -> torch.Tensor:
        return buffer[out(ids, rank)].clone()

    def copy_in(buffer: torch.Tensor, saved: torch.Tensor, ids: torch.Tensor, rank: int) -> None:
        buffer[into(ids, rank)] = saved

    return copy_out, copy_in


@pytest.mark.parametrize("c", [2, 3, 8])
def test_the_test_of_the_page_passes_the_fix(check: Copy, c: int) -> None:
    def rows(ids: torch.Tensor, rank: int) -> torch.Tensor:
        return fixed(ids, rank, c)

    check(*pair(rows, rows), c=c)


def raw(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return ids


def wrapped(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return ids % 256  # in range on every page


def right(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return fixed(ids, rank, 8)


def neighbour(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return fixed(ids, (rank + 1) % 8, 8)


def chunked(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.cat([part[rank::8] // 8 for part in torch.split(ids, 7)])


def whole_turns(ids: torch.Tensor, rank: int) -> torch.Tensor:
    return fixed(ids[: len(ids) // 8 * 8], rank, 8)


@pytest.mark.parametrize(
    ("out", "into"),
    [
        (raw, raw),
        (wrapped, wrapped),
        (chunked, chunked),
        (whole_turns, whole_turns),
        (neighbour, neighbour),
    ],
    ids=["slots as rows", "in range but wrong", "cut first", "tail lost", "another rank"],
)
def test_the_test_of_the_page_fails_what_is_wrong(check: Copy, out: Copy, into: Copy) -> None:
    with pytest.raises((AssertionError, IndexError)):
        check(*pair(out, into))


def test_a_fix_at_one_end_only_is_seen(check: Copy) -> None:
    for out, into in ((right, raw), (raw, right)):
        with pytest.raises((AssertionError, IndexError, RuntimeError)):
            check(*pair(out, into))


def test_the_counts_of_the_page_are_those_of_the_pool_it_names() -> None:
    census = raw_use_census(DcpLayout(dcp_size=8, page_size=64, num_pages=2048))
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"Of these 2,048 pages {census.silent} would be silent" in text
    assert f"and {census.out_of_range:,} crash" in text
    assert "--dcp-size 8 --page-size 64 --num-pages 2048" in text
    assert f"131,072 / 64 = {131_072 // 64:,}" in text
