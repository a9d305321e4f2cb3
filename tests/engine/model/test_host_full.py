"""A host that is full, on a real model: who is declined there is prefilled again and goes on.

In float32, one request a forward: who came back from the host says bit for bit what it would have
said, and who was prefilled again says it up to the rounding of another order of sums.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from kvlab.engine import CountingNode, NodeConfig, RunResult, StepNode
from kvlab.engine.model import ModelCells, ShardedModel
from kvlab.engine.workload import Request
from tests.engine.model.test_retraction_law import FORCED, NAN, REQUESTS, prompts, roomy, schedules
from tests.engine.model.tiny import model

# What test_retraction_law.py allows a request that is recomputed, in nats.
ROUNDING = 2e-5
Logprobs = dict[tuple[int, int], Tensor]


def play(
    kind: str,
    requests: Sequence[Request],
    config: NodeConfig,
    host_bytes: int | None,
    **rules: Any,
) -> tuple[Logprobs, RunResult]:
    """Logprobs ``(vocabulary,)`` by request and position, and the run; all is checked after each
    step, freed rows become NaN, and nothing is lent, held or broken in the end."""
    sharded = ShardedModel(
        model(kind),
        config.layout,
        requests=len(requests),
        batch_invariant=True,
        host_bytes=host_bytes,
    )
    seen: Logprobs = {}

    def watch(rid: int, position: int, logprobs: Tensor) -> None:
        assert (rid, position) not in seen
        seen[rid, position] = logprobs

    cells = ModelCells(sharded, prompts(requests), poison=NAN, verify=True, watch=watch, **rules)
    node = StepNode(config, cells, check_every_step=True)
    result = node.run(requests, record=True)
    assert node.audit() == cells.audit() == []
    assert node.allocator.available_size() == config.layout.capacity_tokens
    assert [pool.host.lent_bytes for pool in sharded.pools.ranks] == [0] * config.layout.dcp_size
    if sharded.pools.states is not None:
        assert len(sharded.pools.states._free) == len(requests)
    return seen, result


def prefilled_again(result: RunResult, requests: Sequence[Request]) -> set[int]:
    """The requests that entered with tokens of their own."""
    lens = {r.rid: r.prompt_tokens for r in requests}
    return {e.rid for e in result.events if e.kind == "admit" and e.tokens > lens[e.rid]}


def require_same(calm: Logprobs, shaken: Logprobs, again: set[int]) -> None:
    assert calm.keys() == shaken.keys()
    for (rid, position), want in calm.items():
        found = shaken[rid, position]
        if rid in again:
            torch.testing.assert_close(found, want, atol=ROUNDING, rtol=0)
        else:
            assert torch.equal(found, want), (rid, position)


@pytest.mark.parametrize("handover", [False, True])
@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_of_those_retracted_the_declined_agree_up_to_rounding_and_the_others_bit_for_bit(
    kind: str, handover: bool
) -> None:
    # A rank's arena has one block of 4096 bytes: the rows of one request, and of no second.
    config = replace(FORCED, host_full="recompute")
    calm, _ = play(kind, REQUESTS, roomy(config), None, handover=handover)
    shaken, result = play(kind, REQUESTS, config, 4096, handover=handover)
    count = result.counters
    assert count.finished == len(REQUESTS)
    assert count.declined_backups == 2
    assert count.resumed_requests == count.retracted_requests - 2 >= 8
    again = prefilled_again(result, REQUESTS)
    assert 0 < len(again) < len({o.rid for o in result.outcomes if o.retractions})
    require_same(calm, shaken, again)


def test_one_rank_without_room_leaves_no_rows_and_no_state_of_the_others_on_the_host() -> None:
    config = replace(FORCED, host_full="recompute")
    calm, _ = play("kimi-moe", REQUESTS, roomy(config), None)
    sharded = ShardedModel(
        model("kimi-moe"), config.layout, requests=len(REQUESTS), batch_invariant=True
    )
    sharded.pools.ranks[2].host.capacity_bytes = 0
    seen: Logprobs = {}
    cells = ModelCells(
        sharded,
        prompts(REQUESTS),
        poison=NAN,
        verify=True,
        watch=lambda rid, position, logprobs: seen.update({(rid, position): logprobs}),
    )
    result = StepNode(config, cells, check_every_step=True).run(REQUESTS, record=True)
    assert result.counters.declined_backups == result.counters.retracted_requests >= 8
    assert [pool.host.lent_bytes for pool in sharded.pools.ranks] == [0, 0, 0, 0]
    assert cells.audit() == []
    require_same(calm, seen, prefilled_again(result, REQUESTS))


@settings(max_examples=12, derandomize=True)
@given(schedule=schedules())
def test_the_model_changes_nothing_in_what_is_declined_and_who_is_prefilled_again(
    schedule: tuple[tuple[Request, ...], NodeConfig],
) -> None:
    requests, config = schedule
    config = replace(config, host_capacity_tokens=14, host_full="recompute")
    calm, _ = play("kimi-moe", requests, roomy(config), None)
    shaken, result = play("kimi-moe", requests, config, None)
    assert result == CountingNode(config).run(requests, record=True)
    assert result.counters.aborted == 0
    require_same(calm, shaken, prefilled_again(result, requests))
