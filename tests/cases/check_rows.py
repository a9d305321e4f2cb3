"""The cases about rows: which rank stores a slot, and where. One function a kind."""

import pytest
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    Shard,
    WidenedSlots,
    localize,
    localize_fixed_shape,
    localize_masked,
    localize_move,
    localize_strided,
    localize_virtual,
    look_up_rows,
    owner_of,
    row_of,
    run_is_aligned,
    slots_of_blocks,
)

from .facts import Facts, ids


def stride_without_phase(run: Tensor, dcp_size: int, rank: int) -> list[int]:
    """The wrong way of c05 and c06: ``run[rank::c] // c``, whatever the run."""
    return (run[rank::dcp_size] // dcp_size).tolist()


def check_localize(given: Facts, right: Facts) -> None:
    c, run, page = given["dcp_size"], ids(given["ids"]), given.get("page_size", 1)
    wrong_somewhere = False
    by_rank = {int(rank): rows for rank, rows in right["rows_by_rank"].items()}
    if "rank" in given:
        assert list(by_rank) == [given["rank"]]
    else:
        assert list(by_rank) == list(range(c))
    start = int(run[0]) % c
    for rank, rows in by_rank.items():
        assert localize_masked(run, Shard(c, rank)).tolist() == rows
        wrong_somewhere |= stride_without_phase(run, c, rank) != rows
        if run_is_aligned(run, c, start):
            assert localize_strided(run, Shard(c, rank), start).tolist() == rows
        else:
            with pytest.raises(IndexSpaceError, match="slot and position must agree"):
                localize_strided(run, Shard(c, rank), start)
        if run.min() >= c * page:  # the typed way refuses the padding page
            layout = DcpLayout(c, page, num_pages=int(run.max()) // (c * page))
            assert localize(WidenedSlots(run, start), layout, rank).ids.tolist() == rows
    assert wrong_somewhere == (start != 0 or not run_is_aligned(run, c, start))
    for rank, rows in right.get("stride_gives", {}).items():
        assert stride_without_phase(run, c, int(rank)) == rows != by_rank[int(rank)]
    if "chunk" in given:
        size = given["chunk"]
        chunks = (run[at : at + size] for at in range(0, len(run), size))
        rows = [row for chunk in chunks for row in stride_without_phase(chunk, c, given["rank"])]
        assert rows == right["chunk_first_gives"] != by_rank[given["rank"]]


def check_restore(given: Facts, right: Facts) -> None:
    c, rank = given["dcp_size"], given["rank"]
    saved = localize_strided(ids(given["old_ids"]), Shard(c, rank)).tolist()
    restored = localize_strided(ids(given["new_ids"]), Shard(c, rank)).tolist()
    assert (saved, restored) == (right["backup_rows"], right["restore_rows"])
    assert len(saved) == len(restored)
    assert saved != restored


def check_double(given: Facts, right: Facts) -> None:
    c, rank, run = given["dcp_size"], given["rank"], ids(given["ids"])
    rows = localize(WidenedSlots(run), DcpLayout(c, page_size=1, num_pages=8), rank)
    assert rows.ids.tolist() == right["once"]
    assert localize_masked(rows.ids, Shard(c, rank)).tolist() == right["twice_gives"]
    assert right["right"] == "the second call is refused"
    with pytest.raises(IndexSpaceError, match="localized already"):
        localize(rows, rows.layout, rank)  # type: ignore[arg-type]
    with pytest.raises(IndexSpaceError, match="localized already"):
        localize_masked(rows, Shard(c, rank))  # type: ignore[arg-type]


def check_order(given: Facts, right: Facts) -> None:
    c, page, v2p, slot = given["dcp_size"], given["page_size"], ids(given["v2p"]), given["id"]
    run = ids([slot])
    assert owner_of(run, c).tolist() == [right["owner"]]
    for rank in range(c):
        elements, rows = localize_virtual(run, v2p, page, Shard(c, rank))
        mine = rank == right["owner"]
        assert elements.tolist() == ([0] if mine else [])
        assert rows.tolist() == ([right["row"]] if mine else [])
    # The other order takes a page of the rank's size from a widened id: there is no such page.
    with pytest.raises(IndexSpaceError, match=rf"virtual row must lie in \[0, 8\): got {slot}"):
        look_up_rows(run, v2p, page)


def check_move(given: Facts, right: Facts) -> None:
    c, target, source = given["dcp_size"], ids([given["tgt"]]), ids([given["src"]])
    if "error" in right:
        assert right["error"] is True
        for rank in range(c):
            with pytest.raises(IndexSpaceError, match="a move is local to one rank"):
                localize_move(target, source, Shard(c, rank))
        return
    for rank in range(c):
        to, from_ = localize_move(target, source, Shard(c, rank))
        mine = rank == right["rank"]
        assert to.tolist() == ([right["row_to"]] if mine else [])
        assert from_.tolist() == ([right["row_from"]] if mine else [])


def check_pairing(given: Facts, right: Facts) -> None:
    assert right["error"] is True
    with pytest.raises(IndexSpaceError, match="have different owners"):
        localize_move(ids(given["device_ids"]), ids(given["host_ids"]), Shard(given["dcp_size"], 0))


def check_sentinel(given: Facts, right: Facts) -> None:
    c, run = given["dcp_size"], ids(given["ids"])
    rows = {str(rank): localize_fixed_shape(run, Shard(c, rank)).tolist() for rank in range(c)}
    assert rows == right["fixed_shape_by_rank"]
    with pytest.raises(IndexSpaceError, match="got -1 at index 0; -1 marks a hole"):
        localize_masked(run, Shard(c, 0))


def check_interleave(given: Facts, right: Facts) -> None:
    c, size, turn, small = (
        given[k] for k in ("dcp_size", "block_size", "interleave", "kernel_block")
    )
    block = ids([given["block"]])
    slots = slots_of_blocks(block, size * c, given["tokens"])
    rows = row_of(slots, c, turn)
    assert owner_of(slots, c, turn).tolist() == right["owner"]
    assert rows.tolist() == right["row"]
    kernel_blocks = given["block"] * (size // small) + (rows - given["block"] * size) // small
    assert (kernel_blocks * small + rows % small).tolist() == right["row"]
    # Owners taken from the kernel's block: what the case is about.
    assert owner_of(slots, c, small).tolist() != right["owner"]
