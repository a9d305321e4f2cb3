"""Ranks that take turns of more than one position: the model, ragged batches and retraction."""

from dataclasses import replace

import pytest
import torch

from kvlab.engine import NodeConfig
from kvlab.engine.model import Form, ShardedModel, plan_step
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.test_retraction_law import play, roomy, said
from tests.engine.model.tiny import Placed, library_logits, model, prompt

TURNS = [(2, 3, 3), (3, 4, 2), (5, 2, 2), (7, 6, 3)]


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
@pytest.mark.parametrize(("dcp_size", "page_size", "turn"), TURNS)
def test_prefill_and_ragged_decode_with_turns_give_the_librarys_logits(
    dcp_size: int, page_size: int, turn: int, kind: str, form: Form
) -> None:
    """Lengths that end inside a turn, at its end and behind it; NaN in all rows that nobody has."""
    lens = [1, turn - 1, turn, turn + 1, dcp_size * turn, dcp_size * turn + 1, 29]
    lay = DcpLayout(dcp_size, page_size, 60, turn)
    sharded = ShardedModel(model(kind), lay, requests=len(lens), form=form)
    for pool in sharded.pools.ranks:
        pool.buffer.fill_(torch.nan)
    placed = Placed(sharded, lens)
    streams = [prompt(50 + i, n + 2) for i, n in enumerate(lens)]
    for i, n in enumerate(lens):
        got = sharded.prefill(streams[i][:n], placed.slots(i), placed.states[i], keep=0)
        want = library_logits(kind, streams[i], n)
        torch.testing.assert_close(got, want[:n], atol=1e-5, rtol=0)
    for step in range(2):
        placed.grow()
        tokens = [int(s[n + step]) for s, n in zip(streams, lens, strict=True)]
        got = sharded.decode(tokens, [placed.slots(i) for i in range(len(lens))], placed.states)
        for i, n in enumerate(lens):
            want = library_logits(kind, streams[i], n)[n + step]
            torch.testing.assert_close(got[i], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("new", [1, 3])
def test_the_ranks_side_by_side_are_as_wide_as_the_longest_of_them(new: int) -> None:
    lay = DcpLayout(2, 6, 4, 3)
    for n in range(3, 24):
        plan = plan_step([WidenedSlots(torch.arange(12, 12 + n))], new, lay)
        assert plan.visible.shape[-1] == max(shard.keys for shard in plan.ranks)


@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
@pytest.mark.parametrize("handover", [False, True])
def test_with_turns_who_was_retracted_says_bit_for_bit_what_he_would_have_said(
    kind: str, handover: bool
) -> None:
    requests = tuple(Request(i, 0.0, 3 + 2 * i, 9 + i) for i in range(5))
    config = NodeConfig(DcpLayout(3, 2, 9, 2), reserved_decode_tokens=1, force_retract_interval=1)
    wide = replace(roomy(config), layout=DcpLayout(3, 2, 300, 2))
    calm, _ = play(kind, requests, wide, handover=handover)
    shaken, result = play(kind, requests, config, handover=handover)
    assert result.counters.resumed_requests > 5
    assert said(shaken) == said(calm)
