"""The pages for teachers, engineers and people in trouble say what is there and what is true."""

import doctest
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.index import DcpLayout, raw_use_census
from kvlab.teach import EXERCISES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
Copy = Callable[..., Any]


def page(name: str) -> str:
    """The text of a page."""
    return (NOTEBOOKS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["TEACHING.md", "ENGINEERS.md"])
def test_links_files_and_exercises_that_a_page_names_exist(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page(name))
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) > 5
    assert [link for link in local if not (NOTEBOOKS / link).is_file()] == []
    files = set(re.findall(r"`((?:kvlab|tests)/[\w/.]+)`", page(name)))
    assert [path for path in sorted(files) if not (ROOT / path).exists()] == []
    named = set(re.findall(r'exercise\("([\w-]+)"\)', page(name))) - {"name"}
    assert named and named <= set(EXERCISES)


def test_functions_that_engineers_are_led_to_are_in_their_modules() -> None:
    pairs = re.findall(r"`(\w+)`(?: in|,) `(kvlab/[\w/]+)\.py`", page("ENGINEERS.md"))
    assert len(pairs) >= 4
    for function, module in pairs:
        assert hasattr(importlib.import_module(module.replace("/", ".")), function), function


def test_the_answers_of_the_three_questions_are_what_the_package_says() -> None:
    blocks = re.findall(r"```pycon\n(.*?)```", page("TEACHING.md"), flags=re.S)
    assert len(blocks) == len(re.findall(r"^\*\*\d\. ", page("TEACHING.md"), flags=re.M)) == 3
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "TEACHING.md", None, None)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_lesson_has_sixty_minutes_without_a_gap_and_names_headings_of_the_notebooks() -> None:
    lines = re.findall(r"^\| (\d+) - (\d+) \|([^|]*)\|([^|]*)\|", page("TEACHING.md"), flags=re.M)
    assert [int(begin) for begin, *_ in lines] == [0, *[int(end) for _, end, *_ in lines[:-1]]]
    assert int(lines[-1][1]) == 60
    for *_, what, live in lines:
        for stem in re.findall(r"\((\d\d_\w+)\.ipynb\)", what + live):
            for heading in re.findall(r"\*([^*]+)\*", live):
                assert re.search(rf'"#+ {re.escape(heading)}', page(f"{stem}.ipynb")), heading


def rows(ids: torch.Tensor, rank: int, c: int = 8) -> torch.Tensor:
    """The rows of ``ids`` on ``rank``, as the page for trouble says it."""
    return ids[ids % c == rank] // c


WRONG: dict[str, Copy] = {
    "slots as rows": lambda ids, rank, c: ids,
    "in range but wrong": lambda ids, rank, c: ids % 256,
    "cut first": lambda ids, rank, c: torch.cat([p[rank::c] // c for p in torch.split(ids, 7)]),
    "tail lost": lambda ids, rank, c: rows(ids[: len(ids) // c * c], rank, c),
    "another rank": lambda ids, rank, c: rows(ids, (rank + 1) % c, c),
}


def run_its_test(out: Copy, into: Copy, c: int = 8) -> None:
    """Run the test of the page, as a reader pastes it, on a node of these two row functions."""
    (block,) = re.findall(r"^```python\n(.*?)^```", page("TROUBLESHOOTING.md"), re.S | re.M)
    names: dict[str, Any] = {}
    exec(block, names)  # our own page

    def copy_in(buffer: torch.Tensor, saved: torch.Tensor, ids: torch.Tensor, rank: int) -> None:
        buffer[into(ids, rank, c)] = saved

    names["check"](lambda buffer, ids, rank: buffer[out(ids, rank, c)].clone(), copy_in, c=c)


def test_the_test_for_trouble_passes_the_fix_and_fails_what_is_wrong_at_either_end() -> None:
    for c in (2, 3, 8):
        run_its_test(rows, rows, c)
    raw = WRONG["slots as rows"]
    for out, into in [*((x, x) for x in WRONG.values()), (rows, raw), (raw, rows)]:
        with pytest.raises((AssertionError, IndexError, RuntimeError)):
            run_its_test(out, into)


def test_the_counts_of_the_page_are_those_of_the_pool_it_names() -> None:
    census = raw_use_census(DcpLayout(dcp_size=8, page_size=64, num_pages=2048))
    text = " ".join(page("TROUBLESHOOTING.md").split())
    assert f"Of these 2,048 pages {census.silent} would be silent" in text
    assert f"and {census.out_of_range:,} crash" in text
    assert "--dcp-size 8 --page-size 64 --num-pages 2048" in text
    assert f"131,072 / 64 = {131_072 // 64:,}" in text
