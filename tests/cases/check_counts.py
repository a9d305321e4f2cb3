"""The cases about counts, bounds, pages, and the merge. One function a kind."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvlab.attn import Partial, merge_partials
from kvlab.errors import IndexSpaceError
from kvlab.index import (
    DcpLayout,
    Shard,
    get_dcp_chunk_lens,
    get_dcp_lens,
    pages_of_free,
    raw_use_census,
)

from .facts import Facts, ids


def check_bound(given: Facts, right: Facts) -> None:
    c, page = given["dcp_size"], given["page_size"]
    if "pages" in given:
        use = raw_use_census(DcpLayout(c, page, given["pages"]))
        assert use.silent == right["silent_pages"]
        assert use.straddling == right["straddling"]
        assert use.out_of_range == right["out_of_range_pages"]
        return
    layout = DcpLayout(c, page, given["tokens_per_rank"] // page)
    row_out, slot_out = right["first_row_out"], right["first_widened_out"]
    assert (layout.row_end, layout.slot_end) == (row_out, slot_out)
    assert layout.owner(slot_out - 1) == c - 1
    assert layout.row(slot_out - 1) == row_out - 1
    with pytest.raises(IndexSpaceError, match=rf"\[0, {slot_out}\): got {slot_out}"):
        layout.owner(slot_out)
    with pytest.raises(IndexSpaceError, match=rf"\[0, {row_out}\): got row {row_out}"):
        layout.slot(0, row_out)


def check_capacity(given: Facts, right: Facts) -> None:
    c, page = given["dcp_size"], given["page_size"]
    if "replicated_rows" in right:
        layout = DcpLayout(c, page, given["rows_per_rank"] // page)
        assert layout.slot_end == right["replicated_rows"]
    elif "tokens_total" in right:
        layout = DcpLayout(c, page, given["tokens_per_rank"] // page)
        assert layout.capacity_tokens == right["tokens_total"]
    elif "rows_per_rank" in right:
        layout = DcpLayout(c, page, num_pages=1)  # the rows of a length do not depend on the pool
        assert layout.pages_for(given["tokens"]) * page == right["rows_per_rank"]
    else:
        layout = DcpLayout(c, page, given["rows_per_rank"] // page)
        assert (layout.pages_for(given["tokens"]) <= layout.num_pages) is right["fits"]
        assert given["tokens"] > given["rows_per_rank"]  # the bound of the wrong space says no


def check_free(given: Facts, right: Facts) -> None:
    ranges = [(begin, end) for begin, end in given["ranges"]]
    if "error" in right:
        assert right["error"] is True
        with pytest.raises(IndexSpaceError, match=r"shares page|must begin on a page"):
            pages_of_free(ranges, given["page"])
    else:
        assert pages_of_free(ranges, given["page"]) == right["pages_freed"]


def check_length(given: Facts, right: Facts) -> None:
    c = given["dcp_size"]

    def by_rank(tokens: int) -> list[int]:
        return [int(get_dcp_lens(ids([tokens]), Shard(c, rank))) for rank in range(c)]

    if "by_chunk" in right:
        chunk = given["chunk_rows_per_rank"] * c
        assert get_dcp_chunk_lens(given["tokens"], chunk, c).tolist() == right["by_chunk"]
    elif "before" in right:
        assert by_rank(given["tokens"]) == right["before"]
        after = {str(lost): by_rank(given["tokens"] - lost) for lost in given["reject"]}
        assert after == right["after"]
    elif "by_rank" in right:
        assert by_rank(given["tokens"]) == right["by_rank"]
    else:
        lens, starts = ids(given["lens"]), ids(given["starts"])
        parts = torch.stack([get_dcp_lens(lens, Shard(c, rank), starts) for rank in range(c)])
        assert parts.sum(0).tolist() == right["sum_over_ranks"]


def check_causal(given: Facts, right: Facts) -> None:
    c, rank, tokens, queries = (given[k] for k in ("dcp_size", "rank", "tokens", "queries"))
    seen = torch.arange(tokens - queries + 1, tokens + 1)  # the bound is in global positions
    assert get_dcp_lens(seen, Shard(c, rank)).tolist() == right["visible"]
    local = int(get_dcp_lens(ids([tokens]), Shard(c, rank)))
    assert [local - queries + 1 + q for q in range(queries)] == right["local_rule_gives"]


def check_merge(given: Facts, right: Facts) -> None:
    if "z" in given:
        lse = [-math.inf if z is None else math.log(z) for z in given["z"]]
    else:
        lse = [float(value) for value in given["lse"]]
    out = [0.0 if o is None else float(o) for o in given["o"]]

    def double(value: object) -> Tensor:
        return torch.tensor(value, dtype=torch.float64)

    def merged(door: Callable[[Tensor, Tensor], Partial], scale: float = 1.0) -> Partial:
        pairs = zip(out, lse, strict=True)
        return merge_partials([door(double([o]), double(x * scale)) for o, x in pairs])

    result = merged(Partial.with_nan_as_empty)  # some cases mark an empty shard by NaN or +inf
    assert result.out.item() == pytest.approx(right["out"], abs=1e-12)
    if "lse" in right:
        assert result.lse.item() == float(right["lse"])
    if "lse_zero_gives" in right:
        lse = [0.0 if math.isinf(x) else x for x in lse]
        assert merged(Partial).out.item() == pytest.approx(right["lse_zero_gives"], abs=1e-12)
    if "nats_read_as_log2" in right:
        in_log2 = 1 / math.log(2.0)
        assert merged(Partial.from_log2, in_log2).out.item() == pytest.approx(right["out"])
        wrong = merged(Partial.from_log2).out.item()
        assert wrong == pytest.approx(right["nats_read_as_log2"], abs=5e-5)
        wrong = merged(Partial, in_log2).out.item()
        assert wrong == pytest.approx(right["log2_read_as_nats"], abs=5e-5)


def check_width(given: Facts, right: Facts) -> None:
    row = -(-(2**31) // given["row_elements"])  # the kernels count elements in 64 bits
    assert row == right["first_bad_row"]
    assert (row - 1) * given["row_elements"] < 2**31 <= row * given["row_elements"]
