"""A NaN in a row that a request reads shows in its logits, and in no other request's."""

import pytest
import torch

from kvlab.engine.model import Form, ShardedModel
from kvlab.index import WidenedSlots
from tests.engine.model.tiny import Placed, layout, model, prompt

EQUAL, RAGGED = (13, 13, 13), (21, 9, 13)


def poisoned(dcp_size: int, lens: tuple[int, ...], form: Form, position: int) -> Placed:
    """Requests that are in the cache, the first with NaN in the row of ``position``."""
    own = ShardedModel(model("kimi-dense"), layout(dcp_size, 2, 40, 3), requests=3, form=form)
    placed = Placed(own, lens)
    for i, n in enumerate(lens):
        own.prefill(prompt(i, n), placed.slots(i), placed.states[i])
    slot = placed.ids[0][position : position + 1]
    own.pools.fill(WidenedSlots(slot, position), float("nan"))
    return placed


@pytest.mark.parametrize("position", [0, 7])
@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("lens", [EQUAL, RAGGED])
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
def test_a_poisoned_row_shows_in_every_logit_of_its_request_and_in_no_other(
    dcp_size: int, lens: tuple[int, ...], form: Form, position: int
) -> None:
    placed = poisoned(dcp_size, lens, form, position)
    placed.grow()
    slots = [placed.slots(i) for i in range(3)]
    decoded = placed.sharded.decode([5, 6, 7], slots, placed.states)
    assert decoded.isnan().all(dim=1).tolist() == [True, False, False]
    assert not decoded[1:].isnan().any()


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("chunk", [1, 4, 9])
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
def test_a_poisoned_row_shows_in_every_logit_of_a_later_chunk_of_the_prompt(
    dcp_size: int, chunk: int, form: Form
) -> None:
    placed = poisoned(dcp_size, RAGGED, form, 7)
    more = placed.allocator.alloc_extend(21, 30, int(placed.ids[0][-1]))
    assert more is not None
    slots = WidenedSlots(torch.cat([placed.ids[0], more]))
    logits = placed.sharded.prefill(
        prompt(0, 30), slots, placed.states[0], chunk_tokens=chunk, start=21, keep=0
    )
    assert logits.isnan().all()
