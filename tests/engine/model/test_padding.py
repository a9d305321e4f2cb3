"""Padding of ragged batches is selected away, and the merge is the step's own."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvlab.attn import Partial, merge_partials
from kvlab.engine.model import Form, ShardedModel, plan_step
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, library_logits, model, prompt

KIND = "kimi-moe"
LENS = [2, 21, 9]


def decoded(dcp_size: int, lens: Sequence[int], **rules: object) -> tuple[Tensor, list[Tensor]]:
    """One common decode step with NaN in every row of the padding page: logits, and the streams."""
    lay = layout(dcp_size, 2, max(lens) + 1, len(lens))
    sharded = ShardedModel(model(KIND), lay, requests=len(lens), **rules)  # type: ignore[arg-type]
    placed = Placed(sharded, lens)
    streams = [prompt(30 + i, n + 1) for i, n in enumerate(lens)]
    for i, n in enumerate(lens):
        sharded.prefill(streams[i][:n], placed.slots(i), placed.states[i])
    for pool in sharded.pools.ranks:
        pool.buffer[:, : lay.first_row] = math.nan
    placed.grow()
    slots = [placed.slots(i) for i in range(len(lens))]
    return sharded.decode([int(s[-1]) for s in streams], slots, placed.states), streams


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
def test_a_nan_in_the_padding_page_reaches_no_request_of_a_ragged_batch(
    dcp_size: int, form: Form
) -> None:
    got, streams = decoded(dcp_size, LENS, form=form)
    for i, (stream, n) in enumerate(zip(streams, LENS, strict=True)):
        want = library_logits(KIND, stream, n)[-1]
        torch.testing.assert_close(got[i], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
def test_without_the_selection_it_reaches_all_but_the_longest(dcp_size: int) -> None:
    got, _ = decoded(dcp_size, LENS, select_padding=False)
    assert torch.isnan(got).any(dim=1).tolist() == [True, False, True]


@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
def test_a_batch_of_one_length_has_no_padding_to_select(dcp_size: int) -> None:
    got, _ = decoded(dcp_size, [9, 9], select_padding=False)
    assert not bool(torch.isnan(got).any())
    alone, _ = decoded(dcp_size, LENS, select_padding=False, batch_invariant=True)
    assert not bool(torch.isnan(alone).any())


def test_a_plan_names_its_padding_and_only_where_there_is_some() -> None:
    runs = [WidenedSlots(torch.tensor([4, 5, 6])), WidenedSlots(torch.tensor([8, 9]))]
    plan = plan_step(runs, 1, DcpLayout(2, 2, 2))
    assert plan.ranks[0].padding is not None
    assert plan.ranks[0].padding.tolist() == [3]
    assert plan.ranks[1].padding is None


def test_more_than_one_rank_merges_by_the_steps_merge_and_one_rank_merges_nothing() -> None:
    seen: list[int] = []

    def counting(partials: Sequence[Partial]) -> Partial:
        seen.append(len(partials))
        return merge_partials(partials)

    plain, _ = decoded(3, LENS)
    counted, _ = decoded(3, LENS, merge=counting)
    assert torch.equal(plain, counted)
    assert seen == [3] * len(seen) and len(seen) == 2 * (len(LENS) + 1)
    decoded(1, LENS, merge=counting)
    assert len(seen) == 2 * (len(LENS) + 1)


def test_a_merge_in_the_wrong_log_base_is_seen_in_the_logits() -> None:
    def in_log2(partials: Sequence[Partial]) -> Partial:
        return merge_partials([Partial.from_log2(p.out, p.lse) for p in partials])

    plain, _ = decoded(4, LENS)
    wrong, _ = decoded(4, LENS, merge=in_log2)
    assert float((plain - wrong).abs().max()) > 1e-2


def first(partials: Sequence[Partial]) -> Partial:
    """No merge at all."""
    return partials[0]


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_the_form_the_merge_and_the_selection_go_along_to_another_layout(form: Form) -> None:
    sharded = ShardedModel(
        model(KIND), DcpLayout(2, 2, 4), requests=1, form=form, merge=first, select_padding=False
    )
    other = sharded.like(DcpLayout(4, 2, 4), requests=1)
    assert (other.form, other.merge, other.select_padding) == (form, first, False)
