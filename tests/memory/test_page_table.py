"""The page table: a one-to-one map that refuses whatever would make it another."""

import pytest
import torch

from kvlab.errors import IndexSpaceError, KvlabError, LayoutError, PoolError
from kvlab.memory import PageTable

from .support import C09, pools_on


@pytest.mark.parametrize(
    ("pages", "error", "text"),
    [
        (
            [2, 0],
            PoolError,
            r"a virtual page must lie in \[1, 3\]: got 0; page 0 is the padding pa",
        ),
        ([4], PoolError, r"a virtual page must lie in \[1, 3\]: got 4"),
        ([-1], PoolError, r"a virtual page must lie in \[1, 3\]: got -1"),
        ([2, 2], PoolError, r"each virtual page is named once: got \[2, 2\]; nothing was changed"),
        ([True], IndexSpaceError, r"virtual page must be an int: got True \(bool\)"),
        ([2.0], IndexSpaceError, r"virtual page must be an int: got 2\.0"),
    ],
)
def test_a_page_that_cannot_be_mapped_is_not_unmapped_either(
    pages: list[int], error: type[KvlabError], text: str
) -> None:
    for mapped in ([], [1, 2, 3]):
        table = PageTable(C09, physical_pages=5)
        assert table.map_pages(mapped)
        before = (table.v2p.clone(), table.p2v.clone())
        for call in (table.map_pages, table.unmap_pages):
            with pytest.raises(error, match=text):
                call(pages)
        assert torch.equal(table.v2p, before[0])
        assert torch.equal(table.p2v, before[1])
        assert table.audit() == []


def test_a_page_is_mapped_once_and_unmapped_once() -> None:
    table = PageTable(C09, physical_pages=3)
    assert table.map_pages([2])
    with pytest.raises(PoolError, match="virtual page 2 is mapped already, to 1"):
        table.map_pages([3, 2])
    with pytest.raises(PoolError, match="virtual page 3 is not mapped: it cannot be unmapped"):
        table.unmap_pages([2, 3])
    assert table.v2p.tolist() == [0, -1, 1, -1]


def test_too_few_physical_pages_map_none() -> None:
    table = PageTable(C09, physical_pages=1)
    assert table.map_pages([2, 3]) is False
    assert table.v2p.tolist() == [0, -1, -1, -1]
    assert table.map_pages([]) is True
    assert table.compact() == []
    assert table.moves == 0
    with pytest.raises(LayoutError, match="physical_pages must be at least 1: pages below the ta"):
        PageTable(C09, physical_pages=0)


@pytest.mark.parametrize(
    ("v2p", "p2v", "text"),
    [
        ({1: 3}, {}, "v2p and p2v disagree"),
        ({}, {2: 3}, "v2p and p2v disagree"),
        ({}, {4: 2}, "the page table maps two virtual pages to one physical page"),
        ({2: -1}, {}, "the page table maps two virtual pages to one physical page"),
        ({0: 2}, {}, "the padding page is mapped elsewhere"),
        ({1: 9}, {}, "v2p names a page past the 5 physical ones"),
    ],
)
def test_the_audit_finds_a_wrong_entry(v2p: dict[int, int], p2v: dict[int, int], text: str) -> None:
    table = PageTable(C09, physical_pages=5)
    assert table.map_pages([3, 1, 2])
    (pool, _) = pools_on(table)
    assert pool.audit() == []
    for page, value in v2p.items():
        table.v2p[page] = value
    for page, value in p2v.items():
        table.p2v[page] = value
    assert text in table.audit()
    assert text in pool.audit()
