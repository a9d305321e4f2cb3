"""Laws of the copies: what is moved, what is summed, and that any split of a copy is the copy."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.ops import as_words, gather_rows, scatter_rows, sum_blocks
from tests.ops.support import twin_can_run

BACKENDS = ["torch", *(["triton"] if twin_can_run() else [])]
KINDS = [torch.bfloat16, torch.uint8, torch.float32]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("e", [7, 12, 64])
def test_gathered_rows_and_their_sums_are_the_rows_and_the_sums_of_the_copy(
    backend: str, kind: torch.dtype, e: int
) -> None:
    page, layers = 4, 2
    buffer = torch.randint(0, 256, (layers, 600, e)).to(kind)
    rows = torch.cat([torch.arange(p * page, (p + 1) * page) for p in torch.randperm(100)])[:259]
    out = torch.empty(layers * len(rows), e, dtype=kind)
    sums = torch.zeros(layers, 2, dtype=torch.int64)
    gather_rows(
        buffer,
        rows,
        out,
        sums=sums,
        block_rows=256,
        page_size=page,
        backend=backend,  # type: ignore[arg-type]
    )
    copy = out.view(layers, -1, e)
    assert torch.equal(copy, buffer[:, rows])
    assert torch.equal(sums, sum_blocks(copy, 256))


@settings(max_examples=30)
@given(
    backend=st.sampled_from(BACKENDS),
    layers=st.integers(1, 3),
    m=st.integers(1, 14),
    page=st.integers(1, 5),
    block_rows=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 42), max_size=3),
)
def test_a_copy_in_stages_moves_and_sums_what_one_copy_does(
    backend: str, layers: int, m: int, page: int, block_rows: int, cuts: list[int]
) -> None:
    buffer = torch.randint(-99, 99, (layers, 20, 3), dtype=torch.int16)
    rows = torch.randperm(20)[:m]
    whole = layers * m
    ends = sorted({0, whole, *(cut for cut in cuts if cut <= whole)})
    blocks = (layers, -(-m // block_rows))
    gathered, scattered = (torch.zeros(blocks, dtype=torch.int64) for _ in range(2))
    staged = []
    target = torch.zeros_like(buffer)
    for begin, end in pairwise(ends):
        stage = torch.empty(end - begin, 3, dtype=torch.int16)
        how = {"block_rows": block_rows, "page_size": page, "backend": backend}
        gather_rows(buffer, rows, stage, begin, end, sums=gathered, **how)  # type: ignore[arg-type]
        scatter_rows(target, rows, stage, begin, end, sums=scattered, **how)  # type: ignore[arg-type]
        staged.append(stage)
    wanted = buffer[:, rows]
    assert torch.equal(torch.cat(staged).view(layers, m, 3), wanted)
    assert torch.equal(target[:, rows], wanted)
    others = torch.ones(20, dtype=torch.bool)
    others[rows] = False
    assert not target[:, others].any()
    assert torch.equal(gathered, scattered)
    for layer in range(layers):
        for block in range(blocks[1]):
            part = wanted[layer, block * block_rows : (block + 1) * block_rows]
            assert int(gathered[layer, block]) == int(part.sum())


@pytest.mark.parametrize(
    ("e", "kind", "word"),
    [
        (576, torch.bfloat16, torch.int64),
        (6, torch.bfloat16, torch.int32),
        (3, torch.bfloat16, torch.int16),
        (3, torch.uint8, torch.uint8),
        (656, torch.uint8, torch.int64),
    ],
)
def test_a_row_moves_as_the_widest_integer_that_divides_it(
    e: int, kind: torch.dtype, word: torch.dtype
) -> None:
    assert as_words(torch.zeros(2, e, dtype=kind)).dtype == word
