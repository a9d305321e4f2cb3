"""What nobody has reaches nobody: padding is selected away, and a NaN in a row that a request reads
shows in its logits and in no other request's. The merge is the step's own."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvlab.attn import Partial, merge_partials
from kvlab.engine.model import Form, ShardedModel, plan_step
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, library_logits, model, prompt

KIND = "kimi-dense"
LENS = [2, 21, 9]
SIZES = [1, 2, 3, 8]
FORMS: list[Form] = ["absorbed", "expanded"]


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dcp_size", SIZES)
def test_a_nan_in_the_padding_page_reaches_no_request_of_a_ragged_batch(
    dcp_size: int, form: Form
) -> None:
    got, streams = decoded(dcp_size, LENS, form=form)
    for i, (stream, n) in enumerate(zip(streams, LENS, strict=True)):
        want = library_logits(KIND, stream, n)[-1]
        torch.testing.assert_close(got[i], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dcp_size", SIZES)
def test_without_the_selection_it_reaches_all_but_the_longest(dcp_size: int) -> None:
    got, _ = decoded(dcp_size, LENS, select_padding=False)
    assert torch.isnan(got).any(dim=1).tolist() == [True, False, True]
    equal, _ = decoded(dcp_size, [9, 9], select_padding=False)
    alone, _ = decoded(dcp_size, LENS, select_padding=False, batch_invariant=True)
    assert not bool(torch.isnan(equal).any()) and not bool(torch.isnan(alone).any())


def test_a_plan_names_its_padding_and_only_where_there_is_some() -> None:
    runs = [WidenedSlots(torch.tensor([4, 5, 6])), WidenedSlots(torch.tensor([8, 9]))]
    first, second = plan_step(runs, 1, DcpLayout(2, 2, 2)).ranks
    assert first.padding is not None and first.padding.tolist() == [3]
    assert second.padding is None


def poisoned(dcp_size: int, lens: Sequence[int], form: Form, position: int) -> Placed:
    """Requests that are in the cache, the first with NaN in the row of ``position``."""
    own = ShardedModel(model(KIND), layout(dcp_size, 2, 40, 3), requests=3, form=form)
    placed = Placed(own, lens)
    for i, n in enumerate(lens):
        own.prefill(prompt(i, n), placed.slots(i), placed.states[i])
    slot = placed.ids[0][position : position + 1]
    own.pools.fill(WidenedSlots(slot, position), math.nan)
    return placed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lens", [(13, 13, 13), (21, 9, 13)])
@pytest.mark.parametrize("dcp_size", SIZES)
def test_a_poisoned_row_shows_in_every_logit_of_its_request_and_in_no_other(
    dcp_size: int, lens: tuple[int, ...], form: Form
) -> None:
    placed = poisoned(dcp_size, lens, form, 7)
    placed.grow()
    slots = [placed.slots(i) for i in range(3)]
    got = placed.sharded.decode([5, 6, 7], slots, placed.states)
    assert got.isnan().all(dim=1).tolist() == [True, False, False]
    assert not got[1:].isnan().any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("dcp_size", SIZES)
def test_a_poisoned_row_shows_in_every_logit_of_a_later_chunk_of_the_prompt(
    dcp_size: int, chunk: int, form: Form
) -> None:
    placed = poisoned(dcp_size, (21, 9, 13), form, 0)
    more = placed.allocator.alloc_extend(21, 30, int(placed.ids[0][-1]))
    assert more is not None
    slots = WidenedSlots(torch.cat([placed.ids[0], more]))
    logits = placed.sharded.prefill(
        prompt(0, 30), slots, placed.states[0], chunk_tokens=chunk, start=21, keep=0
    )
    assert logits.isnan().all()


def test_more_than_one_rank_merges_by_the_steps_merge_and_one_rank_merges_nothing() -> None:
    seen: list[int] = []

    def counting(partials: Sequence[Partial]) -> Partial:
        seen.append(len(partials))
        return merge_partials(partials)

    def in_log2(partials: Sequence[Partial]) -> Partial:
        return merge_partials([Partial.from_log2(p.out, p.lse) for p in partials])

    plain, _ = decoded(3, LENS)
    counted, _ = decoded(3, LENS, merge=counting)
    assert torch.equal(plain, counted)
    assert seen == [3] * len(seen) and len(seen) == 2 * (len(LENS) + 1)
    decoded(1, LENS, merge=counting)
    assert len(seen) == 2 * (len(LENS) + 1)
    wrong, _ = decoded(3, LENS, merge=in_log2)
    assert float((plain - wrong).abs().max()) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_the_form_the_merge_and_the_selection_go_along_to_another_layout(form: Form) -> None:
    def first(partials: Sequence[Partial]) -> Partial:
        return partials[0]

    sharded = ShardedModel(
        model(KIND), DcpLayout(2, 2, 4), requests=1, form=form, merge=first, select_padding=False
    )
    other = sharded.like(DcpLayout(4, 2, 4), requests=1)
    assert (other.form, other.merge, other.select_padding) == (form, first, False)
