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
    merge_stacked,
    remap_topk,
    scatter_rows,
    set_mla_kv_buffer,
)

IDS, ROWS, BUFFER = torch.arange(8, 14), torch.tensor([4, 5, 1]), torch.zeros(2, 8, 6)
TWO: Any = Shard(2, 0)
FLOAT, ELSEWHERE = "must be int64 or int32", "the tensors of one op must be on one device"
Bad = tuple[dict[str, Any], str]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: localize_run(IDS, TWO, -1), LayoutError, "start must be at least 0"),
        (lambda: localize_run(IDS.float(), TWO), IndexSpaceError, FLOAT),
        (lambda: localize_fixed_shape(IDS, TWO, -2), LayoutError, "hole must be at least -1"),
        (lambda: remap_topk(IDS.float(), TWO), IndexSpaceError, FLOAT),
        (
            lambda: localize_run(IDS, TWO, backend="cuda"),  # type: ignore[arg-type]
            BackendError,
            "backend must be 'torch', 'triton' or None: got 'cuda'",
        ),
        (
            lambda: merge_stacked(torch.zeros(2, 3, 4), torch.zeros(2, 3, device="meta")),
            BackendError,
            f"{ELSEWHERE}: got one on cpu and one on meta",
        ),
        (
            lambda: as_words(torch.zeros(17, dtype=torch.uint8)[1:].view(2, 8)),
            LayoutError,
            "rows of 8 bytes move as words of 8 bytes and must",
        ),
    ],
)
def test_a_bad_call_is_told_what_is_wrong(
    call: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()


COPIES: list[Bad] = [
    ({"buffer": BUFFER[0]}, r"buffer must be \(layers, rows, elements\) and contiguous: got \(8,"),
    ({"buffer": BUFFER[:, ::2]}, r"got \(2, 4, 6\) with strides \(48, 12, 1\)"),
    ({"flat": torch.zeros(6, 12)[:, ::2]}, r"the copy must be \(flat rows, elements\) and contig"),
    ({"rows": ROWS.float()}, FLOAT),
    ({"rows": ROWS.int()}, r"rows must be contiguous int64: got torch.int32"),
    ({"block_rows": 0}, "block_rows must be at least 1"),
    ({"page_size": 0}, "page_size must be at least 1"),
    ({"begin": -1}, r"flat rows must lie in \[0, 6\).*: got \[-1, 6\)"),
    ({"begin": 4, "end": 3}, r"flat rows must lie in \[0, 6\).*: got \[4, 3\)"),
    ({"end": 7}, r"flat rows must lie in \[0, 6\), 2 layers of 3 rows: got \[0, 7\)"),
    ({"begin": 1}, r"\[1, 6\) must be \(5, 6\) of torch.float32: got \(6, 6\) of"),
    ({"flat": torch.zeros(6, 6).int()}, r"must be \(6, 6\) of torch.float32: got .* torch.int32"),
    ({"sums": torch.zeros(2, 1).long()}, r"int64 \(2, 2\).* got torch.int64 \(2, 1\)"),
    ({"sums": torch.zeros(2, 2)}, r"sums must be contiguous int64 \(2, 2\).* got torch.float32"),
    ({"rows": ROWS.to("meta"), "backend": "torch"}, ELSEWHERE),
]


@pytest.mark.parametrize(("op", "flat"), [(gather_rows, "out"), (scatter_rows, "source")])
@pytest.mark.parametrize(("changed", "text"), COPIES)
def test_a_copy_that_does_not_fit_is_told_why(
    op: Callable[..., None], flat: str, changed: dict[str, Any], text: str
) -> None:
    given = {"buffer": BUFFER, "rows": ROWS, "block_rows": 2, "page_size": 2}
    given |= {"flat": torch.zeros(6, 6), **changed}
    given[flat] = given.pop("flat")
    with pytest.raises((LayoutError, IndexSpaceError, BackendError), match=text):
        op(**given)


WRITES: list[Bad] = [
    ({"layer": BUFFER}, r"layer must be \(rows, elements\) and contiguous: got"),
    ({"layer": torch.zeros(6, 8).T}, r"layer must be .* with strides \(1, 8\)"),
    ({"k_nope": torch.zeros(4, 4)}, r"k_nope must be \(3, elements\) of torch.float32.* \(4, 4\)"),
    ({"k_rope": torch.zeros(3, 2).half()}, r"k_rope must be .* got \(3, 2\) of torch.float16"),
    ({"k_nope": torch.zeros(3, 8)[:, ::2]}, r"elements of a row adjacent: got strides \(8, 2\)"),
    ({"k_rope": torch.zeros(3, 3)}, r"a whole row: got 4 and 3 elements for rows of 6"),
    ({"first_slot": -1}, "first_slot must be at least 0"),
    ({"slot_end": 3}, "slot_end must be at least 4"),
    ({"slot_end": 17}, r"below slot_end: got 8 rows for slot_end=17"),
    ({"ids": IDS[:3].float()}, FLOAT),
    ({"ids": IDS[:3].to("meta")}, ELSEWHERE),
]


@pytest.mark.parametrize(("changed", "text"), WRITES)
def test_a_write_that_does_not_fit_is_told_why(changed: dict[str, Any], text: str) -> None:
    given = {
        "layer": torch.zeros(8, 6), "ids": IDS[:3], "k_nope": torch.zeros(3, 4),
        "k_rope": torch.zeros(3, 2), "shard": TWO, "first_slot": 4, "slot_end": 16, **changed,
    }  # fmt: skip
    with pytest.raises((LayoutError, IndexSpaceError, BackendError), match=text):
        set_mla_kv_buffer(**given)
