"""What a caller is told: the rule, the value, where it stands, the bound; then what to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvlab.errors import BackendError, IndexSpaceError, LayoutError
from kvlab.index import Shard
from kvlab.ops import (
    as_words,
    gather_rows,
    localize_fixed_shape,
    localize_run,
    merge_partials,
    merge_stacked,
    remap_topk,
    scatter_rows,
    set_mla_kv_buffer,
)

IDS = torch.arange(8, 14)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: localize_run(IDS, Shard(2, 0), -1), LayoutError, "start must be at least 0"),
        (
            lambda: localize_run(IDS.float(), Shard(2, 0)),
            IndexSpaceError,
            "ids must be int64 or int32",
        ),
        (
            lambda: localize_run(IDS[None], Shard(2, 0)),
            IndexSpaceError,
            r"ids must have shape \(n,\)",
        ),
        (
            lambda: localize_fixed_shape(IDS, Shard(2, 0, 1), hole=-2),
            LayoutError,
            "hole must be at least -1",
        ),
        (
            lambda: remap_topk(IDS.float(), Shard(2, 0)),
            IndexSpaceError,
            "topk must be int64 or int32",
        ),
        (
            lambda: merge_partials([]),
            IndexSpaceError,
            "a merge takes one partial a rank",
        ),
        (
            lambda: merge_stacked(torch.zeros(2, 3, 4), torch.zeros(2, 4)),
            IndexSpaceError,
            "lse must have the shape of out without its last axis",
        ),
        (
            lambda: localize_run(IDS, Shard(2, 0), backend="cuda"),  # type: ignore[arg-type]
            BackendError,
            "backend must be 'torch', 'triton' or None: got 'cuda'; None chooses",
        ),
        (
            lambda: merge_stacked(torch.zeros(2, 3, 4), torch.zeros(2, 3, device="meta")),
            BackendError,
            "the tensors of one op must be on one device: got one on cpu and one on meta",
        ),
    ],
)
def test_a_bad_call_is_told_what_is_wrong(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


BUFFER = torch.zeros(2, 8, 6)
ROWS = torch.tensor([4, 5, 1])


def copy(**changed: Any) -> dict[str, Any]:
    return {
        "buffer": BUFFER, "rows": ROWS, "begin": 0, "end": None, "sums": None,
        "block_rows": 2, "page_size": 2, **changed,
    }  # fmt: skip


@pytest.mark.parametrize(("op", "flat"), [(gather_rows, "out"), (scatter_rows, "source")])
@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        (
            {"buffer": BUFFER[0]},
            LayoutError,
            r"buffer must be \(layers, rows, elements\) and contiguous: got \(8, 6\)",
        ),
        (
            {"buffer": BUFFER[:, ::2]},
            LayoutError,
            r"buffer must be .* contiguous: got \(2, 4, 6\) with strides \(48, 12, 1\); use .cont",
        ),
        (
            {"flat": torch.zeros(6, 12)[:, ::2]},
            LayoutError,
            r"the copy must be \(flat rows, elements\) and contiguous",
        ),
        ({"rows": ROWS.float()}, IndexSpaceError, "rows must be int64 or int32"),
        (
            {"rows": ROWS.int()},
            LayoutError,
            r"rows must be contiguous int64: got torch.int32 .* use rows.to\(torch.int64\)",
        ),
        ({"block_rows": 0}, LayoutError, "block_rows must be at least 1: rows that are summed"),
        ({"page_size": 0}, LayoutError, "page_size must be at least 1: rows of one page"),
        ({"begin": -1}, LayoutError, r"flat rows must lie in \[0, 6\), .*: got \[-1, 6\)"),
        ({"begin": 4, "end": 3}, LayoutError, r"flat rows must lie in \[0, 6\), .*: got \[4, 3\)"),
        (
            {"end": 7},
            LayoutError,
            r"flat rows must lie in \[0, 6\), 2 layers of 3 rows: got \[0, 7\); shorten",
        ),
        (
            {"begin": 1},
            LayoutError,
            r"the copy of flat rows \[1, 6\) must be \(5, 6\) of torch.float32: got \(6, 6\) of",
        ),
        (
            {"flat": torch.zeros(6, 6, dtype=torch.int32)},
            LayoutError,
            r"must be \(6, 6\) of torch.float32: got \(6, 6\) of torch.int32",
        ),
        (
            {"sums": torch.zeros(2, 1, dtype=torch.int64)},
            LayoutError,
            r"sums must be contiguous int64 \(2, 2\), a layer and a block of 2 rows each: got "
            r"torch.int64 \(2, 1\); use torch.zeros",
        ),
        (
            {"sums": torch.zeros(2, 2)},
            LayoutError,
            r"sums must be contiguous int64 \(2, 2\).* got torch.float32",
        ),
        (
            {"rows": ROWS.to("meta")},
            BackendError,
            "the tensors of one op must be on one device",
        ),
    ],
)
def test_a_copy_that_does_not_fit_is_told_why(
    op: Callable[..., None], flat: str, changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {"flat": torch.zeros(6, 6), **changed}
    given[flat] = given.pop("flat")
    with pytest.raises(error, match=text):
        op(**copy(**given))


def test_rows_that_begin_off_the_word_are_refused() -> None:
    off = torch.zeros(17, dtype=torch.uint8)[1:].view(2, 8)
    with pytest.raises(LayoutError, match=r"rows of 8 bytes move as words of 8 bytes and must"):
        as_words(off)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"layer": BUFFER}, LayoutError, r"layer must be \(rows, elements\) and contiguous: got"),
        (
            {"layer": torch.zeros(6, 8).T},
            LayoutError,
            r"layer must be .* with strides \(1, 8\); pass one layer of a pool's buffer",
        ),
        (
            {"k_nope": torch.zeros(4, 4)},
            LayoutError,
            r"k_nope must be \(3, elements\) of torch.float32, a row for each id: got \(4, 4\)",
        ),
        (
            {"k_rope": torch.zeros(3, 2).half()},
            LayoutError,
            r"k_rope must be .* got \(3, 2\) of torch.float16; cast or encode it first",
        ),
        (
            {"k_nope": torch.zeros(3, 8)[:, ::2]},
            LayoutError,
            r"k_nope must have the elements of a row adjacent: got strides \(8, 2\)",
        ),
        (
            {"k_rope": torch.zeros(3, 3)},
            LayoutError,
            r"must make a whole row: got 4 and 3 elements for rows of 6; pass both parts",
        ),
        ({"first_slot": -1}, LayoutError, "first_slot must be at least 0: the lowest slot that"),
        ({"slot_end": 3}, LayoutError, "slot_end must be at least 4: one past the highest slot"),
        (
            {"slot_end": 17},
            LayoutError,
            r"the buffer must have a row for every slot below slot_end: got 8 rows for slot_end=17",
        ),
        ({"ids": IDS[:3].float()}, IndexSpaceError, "ids must be int64 or int32"),
        ({"ids": IDS[:3].to("meta")}, BackendError, "must be on one device"),
    ],
)
def test_a_write_that_does_not_fit_is_told_why(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    given = {
        "layer": torch.zeros(8, 6), "ids": IDS[:3], "k_nope": torch.zeros(3, 4),
        "k_rope": torch.zeros(3, 2), "shard": Shard(2, 0), "first_slot": 4,
        "slot_end": 16, **changed,
    }  # fmt: skip
    with pytest.raises(error, match=text):
        set_mla_kv_buffer(**given)
