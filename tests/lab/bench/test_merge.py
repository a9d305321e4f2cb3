"""The merge that is timed is the weighted mean, and its copy moves as many bytes."""

from dataclasses import replace

import pytest
import torch

from kvlab.attn import Partial
from kvlab.errors import StudyError
from kvlab.lab.bench import merge
from kvlab.ops import Backend, merge_stacked
from tests.lab.bench.support import FEW_ROWS, HERE, require_whole


def test_the_rows_of_a_case_are_whole_and_hold_its_sizes() -> None:
    rows = merge.rows_of(FEW_ROWS, HERE)
    require_whole(rows)
    (row,) = rows
    assert (row.ours, row.baseline, row.aim) == ("merge_stacked, torch", merge.COPY, None)
    facts = row.facts
    assert (facts.op, facts.backend, facts.tokens, facts.dcp_size) == ("merge", "torch", 2, 3)
    assert row.share_of_copy == row.ratio.median


def test_the_copy_is_half_of_what_is_read_and_written() -> None:
    stack, *_ = merge.make_stacks(FEW_ROWS, HERE)
    read = stack.out.nbytes + stack.lse.nbytes
    assert read == FEW_ROWS.read_bytes
    assert stack.source.nbytes == stack.target.nbytes == FEW_ROWS.copy_bytes
    assert 2 * FEW_ROWS.copy_bytes == read + read // FEW_ROWS.dcp_size
    assert all(case.copy_bytes <= 2 * case.dcp_size * case.requests * case.heads * case.width
               for case in merge.FULL)  # fmt: skip


def test_the_stacks_exceed_the_cache_and_some_shards_are_empty() -> None:
    stacks = merge.make_stacks(replace(FEW_ROWS, dcp_size=8), HERE)
    assert len(stacks) * FEW_ROWS.read_bytes * 8 // 3 >= 2 * HERE.cache_bytes
    empty = torch.stack([stack.lse for stack in stacks]).isinf()
    assert 0.05 < float(empty.double().mean()) < 0.25


@pytest.mark.parametrize("wrong", ["out", "lse"])
def test_a_merge_that_is_no_weighted_mean_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def worse(out: torch.Tensor, lse: torch.Tensor, *, backend: Backend) -> Partial:
        found = merge_stacked(out, lse, backend=backend)
        return replace(found, **{wrong: getattr(found, wrong) + 0.1})

    monkeypatch.setattr(merge, "merge_stacked", worse)
    with pytest.raises(StudyError, match=r"the merge by torch is .* from the weighted mean"):
        merge.rows_of(FEW_ROWS, HERE)


def test_the_shapes_are_those_of_two_models_latent_and_expanded() -> None:
    shapes = {(case.model, case.heads, case.width) for case in merge.FULL}
    assert shapes == {
        (model, heads, width)
        for model, heads in (("Kimi Linear", 32), ("DeepSeek", 128))
        for width in (512, 128)
    }
    assert {case.dcp_size for case in merge.FULL} == {2, 4, 8}
