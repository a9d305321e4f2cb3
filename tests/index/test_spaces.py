"""The two types: neither is an index, neither passes for the other, and neither changes unseen."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kvlab.index
from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, Shard, WidenedSlots, localize, require_run

from .oracle import ids

# The rules below hand over what the types forbid, so the types are looked away from.
index: Any = kvlab.index
LAYOUT = DcpLayout(2, page_size=2, num_pages=4)
SLOTS: Any = WidenedSlots(ids([8, 9, 10]))
ROWS: Any = localize(SLOTS, LAYOUT, 0)
POOL = torch.zeros(10, 3)
TAKES_RAW_IDS: dict[str, Callable[[Any], object]] = {
    "WidenedSlots": lambda v: WidenedSlots(v),
    "assume_physical": lambda v: PhysicalRows.assume_physical(v, LAYOUT, 0),
    "owner_of": lambda v: index.owner_of(v, 2),
    "row_of": lambda v: index.row_of(v, 2),
    "localize_masked": lambda v: index.localize_masked(v, Shard(2, 0)),
    "localize_strided": lambda v: index.localize_strided(v, Shard(2, 0)),
    "unchecked": lambda v: index.localize_strided(v, Shard(2, 0), check=False),
    "owned_elements": lambda v: index.owned_elements(v, Shard(2, 0)),
    "run_is_aligned": lambda v: index.run_is_aligned(v, 2),
    "localize_fixed_shape": lambda v: index.localize_fixed_shape(v, Shard(2, 0)),
    "write locations": lambda v: index.remap_dcp_write_locations_fixed_shape(v, Shard(2, 0)),
    "owner write": lambda v: index.plan_dcp_owner_write(v, Shard(2, 0)),
    "topk": lambda v: index.remap_dcp_local_topk_indices(v, Shard(2, 0)),
    "maybe": lambda v: index.maybe_dcp_kernel_indices(v, Shard(2, 0)),
    "maybe, off": lambda v: index.maybe_dcp_kernel_indices(v, Shard(1, 0)),
    "chunk filter": lambda v: index.filter_dcp_local_chunk_kv_indices(v, [0], [3], Shard(2, 0)),
    "chunk filter, off": lambda v: index.filter_dcp_local_chunk_kv_indices(
        v, [0], [3], Shard(1, 0)
    ),
    "block table": lambda v: index.dcp_local_kv_block_table(v, 2, 2),
    "slots_of_blocks": lambda v: index.slots_of_blocks(v, 4, 3),
    "move target": lambda v: index.localize_move(v, ids([8, 9, 10]), Shard(2, 0)),
    "move source": lambda v: index.localize_move(ids([8, 9, 10]), v, Shard(2, 0)),
    "virtual": lambda v: index.localize_virtual(v, ids([0, 1, 2]), 2, Shard(2, 0)),
    "look up": lambda v: index.look_up_rows(v, ids([0, 1, 2]), 2),
    "page table": lambda v: index.look_up_rows(ids([1]), v, 2),
}


@pytest.mark.parametrize("name", TAKES_RAW_IDS)
def test_what_is_no_dense_tensor_of_int64_or_int32_ids_is_refused_everywhere(name: str) -> None:
    wrong: list[tuple[object, str]] = [
        (ROWS, r"PhysicalRows of rank 0: they are localized already"),
        (SLOTS, r"must be a raw tensor, got WidenedSlots; pass \.ids"),
        ([8, 9, 10], "got list"),
        (np.array([8, 9, 10]), "got ndarray"),
        (torch.tensor([8.0, 9.0]), r"torch\.float32: a float id is exact only below 2\*\*24"),
        (torch.tensor([8, 9], dtype=torch.int16), r"torch\.int16"),
        (torch.tensor([True, False]), r"torch\.bool"),
        (ids([0, 9]).to_sparse(), r"a dense tensor, got torch\.sparse_coo"),
    ]
    if name not in ("topk", "block table"):
        shapes: tuple[tuple[int, ...], ...] = ((), (1, 3), (2, 0))
        text = r"must have shape \(n,\), got \("
        wrong += [(torch.zeros(shape, dtype=torch.int64), text) for shape in shapes]
    if name == "block table":
        wrong.append((ids([8] * 4), r"must have shape \(batch, columns\), got \(4,\)"))
    for given, text in wrong:
        with pytest.raises(IndexSpaceError, match=text):
            TAKES_RAW_IDS[name](given)


@pytest.mark.parametrize("given", [ROWS, ids([8, 9]), [8, 9], 8, None])
def test_localize_takes_nothing_but_slots(given: object) -> None:
    text = "localized already" if given is ROWS else "localize takes WidenedSlots, got"
    with pytest.raises(IndexSpaceError, match=text):
        index.localize(given, LAYOUT, 0)


@pytest.mark.parametrize("wrapper", [SLOTS, ROWS, WidenedSlots(ids([1]))])
def test_torch_takes_neither_slots_nor_rows_for_an_index(wrapper: Any) -> None:
    # Which of the two classes is raised is up to the version of torch.
    for use in (
        lambda: POOL[wrapper],
        lambda: POOL[:, wrapper],
        lambda: POOL[wrapper, 0],
        lambda: POOL.__setitem__(wrapper, 1.0),
        lambda: POOL.index_select(0, wrapper),
        lambda: torch.take(POOL, wrapper),
        lambda: POOL.index_copy_(0, wrapper, POOL[:3]),
    ):
        with pytest.raises((TypeError, IndexError), match=type(wrapper).__name__):
            use()
    assert POOL.count_nonzero() == 0


@pytest.mark.parametrize("wrapper", [SLOTS, ROWS])
def test_neither_turns_into_a_tensor_an_array_or_a_list_by_itself(wrapper: Any) -> None:
    for use in (torch.tensor, torch.as_tensor, list, int):
        with pytest.raises((TypeError, RuntimeError)):
            use(wrapper)
    with pytest.raises((TypeError, IndexError)):
        np.zeros((10, 3))[wrapper]


def test_python_and_numpy_say_what_to_do_with_slots() -> None:
    for use in (lambda: np.zeros(10)[SLOTS], lambda: np.asarray(SLOTS), lambda: [1, 2][SLOTS]):
        with pytest.raises(
            TypeError, match=r"not an index: .* call localize\(slots, layout, rank\)"
        ):
            use()


def test_rows_cannot_be_built_changed_or_moved_to_another_rank() -> None:
    with pytest.raises(IndexSpaceError, match="cannot be built from raw ids"):
        PhysicalRows(ids([4]), ids([0]), 0, LAYOUT, 0, 1)
    for change in ({"rank": 1}, {"ids": ids([9, 9])}, {}):
        with pytest.raises(IndexSpaceError, match="cannot be built from raw ids"):
            dataclasses.replace(ROWS, **change)
    with pytest.raises(AttributeError):
        ROWS.rank = 1
    with pytest.raises(AttributeError):
        SLOTS.start = 1


def test_assumed_rows_carry_their_order_their_rank_and_their_layout() -> None:
    rows = PhysicalRows.assume_physical(torch.tensor([9, 4], dtype=torch.int32), LAYOUT, 1)
    assert (rows.ids.dtype, rows.ids.tolist(), rows.source.tolist()) == (
        torch.int64,
        [9, 4],
        [0, 1],
    )
    assert (rows.rank, rows.layout, len(rows)) == (1, LAYOUT, 2)
    assert (rows.start, rows.positions, rows.resolved_at) == (0, 2, None)
    assert len(PhysicalRows.assume_physical(ids([]), LAYOUT, 1)) == 0


def test_int64_ids_are_kept_and_int32_ids_widened() -> None:
    wide, narrow = ids([8, 9]), ids([8, 9]).to(torch.int32)
    assert WidenedSlots(wide).ids is wide
    assert WidenedSlots(narrow).ids.dtype == torch.int64


def test_a_run_of_the_table_is_known_until_torch_writes_to_it() -> None:
    run = WidenedSlots.of_table(ids([8, 9, 10, 11]), 0, LAYOUT)
    assert run.verified_for(LAYOUT) and run.chunk(1, 3).verified_for(LAYOUT)
    assert not run.verified_for(DcpLayout(2, page_size=2, num_pages=5))
    assert not WidenedSlots(run.ids).verified_for(LAYOUT)
    assert localize(run.chunk(1, 4), LAYOUT, 1).source.tolist() == [0, 2]
    run.ids[3] = 12
    assert not run.verified_for(LAYOUT)
    assert localize(run, LAYOUT, 0).ids.tolist() == [4, 5, 6]


def test_a_run_of_the_table_made_under_inference_mode_is_looked_at_each_time() -> None:
    with torch.inference_mode():
        run = WidenedSlots.of_table(ids([8, 9]), 0, LAYOUT)
        assert not run.verified_for(LAYOUT)
    assert localize(run, LAYOUT, 1).ids.tolist() == [4]


@pytest.mark.parametrize(
    ("given", "start", "text"),
    [
        ([4, 5, 20], 0, r"widened slot must lie in \[4, 20\): got 20 at index 2"),
        ([2, 3], 0, r"widened slot must lie in \[4, 20\): got 2 at index 0"),
        ([5, 6], 0, "slot 5 at index 0 has owner 1, position 0 has 0"),
        ([4, 5, 7], 2, "slot 7 at index 2 has owner 1, position 4 has 0"),
    ],
)
def test_a_table_refuses_ids_that_are_no_run_of_the_layout(
    given: list[int], start: int, text: str
) -> None:
    require_run(ids([4, 5, 16, 17]), 2, LAYOUT)
    with pytest.raises(IndexSpaceError, match=text):
        require_run(ids(given), start, LAYOUT)
