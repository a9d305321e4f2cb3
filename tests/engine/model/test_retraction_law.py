"""The law of retraction, on a real model: who was retracted says what he would have said.

What makes it hold bit for bit: float32, one request a forward (``batch_invariant=True``), the same
chunks of prefill, the same number of ranks and of threads, and a sampler that looks at request and
position only. Page size and where the pages lie do not matter.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import CountingNode, NodeConfig, RunResult, StepNode
from kvlab.engine.model import Greedy, ModelCells, Sampler, Seeded, ShardedModel
from kvlab.engine.workload import Request
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab import crash
from kvlab.memory import KvBackup
from tests.engine.model.tiny import model, prompt

NAN = float("nan")


def prompts(requests: Sequence[Request]) -> dict[int, list[int]]:
    return {r.rid: prompt(100 + r.rid, r.prompt_tokens).tolist() for r in requests}


def play(
    kind: str,
    requests: Sequence[Request],
    config: NodeConfig,
    *,
    batch_invariant: bool = True,
    cells_of: type[ModelCells] = ModelCells,
    verify: bool = True,
    kv_dtype: torch.dtype | None = None,
    **rules: Any,
) -> tuple[ModelCells, RunResult]:
    """Run the requests on a node; freed rows become NaN, all is checked after each step."""
    sharded = ShardedModel(
        model(kind),
        config.layout,
        requests=len(requests),
        batch_invariant=batch_invariant,
        kv_dtype=kv_dtype,
    )
    cells = cells_of(sharded, prompts(requests), poison=NAN, verify=verify, **rules)
    node = StepNode(config, cells, check_every_step=True)
    result = node.run(requests, record=True)
    assert result.counters.finished == len(requests)
    assert node.audit() == cells.audit() == []
    assert [len(cells.streams[r.rid].output) for r in requests] == [
        r.output_tokens for r in requests
    ]
    return cells, result


def roomy(config: NodeConfig) -> NodeConfig:
    """The same ranks with room for all, and nobody forced out."""
    lay = DcpLayout(config.layout.dcp_size, 1, 2000)
    return replace(config, layout=lay, force_retract_interval=None)


def said(cells: ModelCells) -> dict[int, tuple[list[int], list[float]]]:
    """Tokens and logprobs of every request; floats compare by value, so bit for bit."""
    return {rid: (s.tokens, s.logprobs) for rid, s in sorted(cells.streams.items())}


@st.composite
def schedules(draw: st.DrawFn) -> tuple[tuple[Request, ...], NodeConfig]:
    """Two to five requests on a node that is short, or forces somebody out, or both."""
    pairs = draw(st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=2,
                          max_size=5))  # fmt: skip
    requests = tuple(Request(i, 0.02 * i, p, o) for i, (p, o) in enumerate(pairs))
    dcp_size, page_size = draw(st.sampled_from([(1, 4), (2, 2), (3, 1), (4, 1), (8, 1)]))
    wide = dcp_size * page_size
    longest = -(-max(p + o for p, o in pairs) // wide) + 2
    pages = longest + draw(st.integers(0, 4))
    return requests, NodeConfig(
        DcpLayout(dcp_size, page_size, pages),
        reserved_decode_tokens=1,
        force_retract_interval=draw(st.sampled_from([1, 2, 3])),
    )


@settings(max_examples=25, derandomize=True)
@given(
    schedule=schedules(),
    kind=st.sampled_from(["kimi-moe", "deepseek-v3"]),
    sampler=st.sampled_from([Greedy(), Seeded(5)]),
    handover=st.booleans(),
    chunk_tokens=st.sampled_from([None, 3]),
)
def test_a_retracted_request_says_bit_for_bit_what_it_would_have_said(
    schedule: tuple[tuple[Request, ...], NodeConfig],
    kind: str,
    sampler: Sampler,
    handover: bool,
    chunk_tokens: int | None,
) -> None:
    requests, config = schedule
    rules: dict[str, Any] = {"sampler": sampler, "handover": handover, "chunk_tokens": chunk_tokens}
    calm, unretracted = play(kind, requests, roomy(config), **rules)
    shaken, result = play(kind, requests, config, **rules)
    assert unretracted.counters.retracted_requests == 0
    assert said(shaken) == said(calm)
    # And the model changes nothing in what the scheduler counts.
    assert result == CountingNode(config).run(requests, record=True)
    assert result == StepNode(config).run(requests, record=True)


REQUESTS = tuple(Request(i, 0.0, 5 + 3 * i, 20 + i) for i in range(5))
FORCED = NodeConfig(DcpLayout(4, 2, 14), reserved_decode_tokens=4, force_retract_interval=3)


@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_the_schedule_of_the_examples_below_retracts_and_resumes_many_times(kind: str) -> None:
    calm, _ = play(kind, REQUESTS, roomy(FORCED))
    shaken, result = play(kind, REQUESTS, FORCED)
    assert result.counters.resumed_requests == result.counters.retracted_requests >= 8
    assert said(shaken) == said(calm)


@pytest.mark.parametrize("handover", [False, True])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_law_holds_for_rows_of_every_dtype(kv_dtype: torch.dtype, handover: bool) -> None:
    rules: dict[str, Any] = {"kv_dtype": kv_dtype, "handover": handover}
    calm, _ = play("kimi-moe", REQUESTS, roomy(FORCED), **rules)
    shaken, result = play("kimi-moe", REQUESTS, FORCED, **rules)
    assert result.counters.resumed_requests > 0
    assert said(shaken) == said(calm)


class ScalesLeftBehind(ModelCells):
    """fp8 rows come back, their scales do not: those of who had the rows before are left."""

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        ranks = self.sharded.pools.ranks
        left = [(pool.resolve(slots).ids, pool.scales.clone()) for pool in ranks]
        super().restore(rid, backups, slots)
        for pool, (rows, scales) in zip(ranks, left, strict=True):
            pool.scales[:, rows] = scales[:, rows]


def test_scales_that_are_not_restored_are_named_by_the_check_and_seen_in_the_logprobs() -> None:
    rules: dict[str, Any] = {"kv_dtype": torch.float8_e4m3fn, "cells_of": ScalesLeftBehind}
    with pytest.raises(
        PoolError, match=r"request \d must come back as it left: \d+ of \d+ elements"
    ):
        play("kimi-dense", REQUESTS, FORCED, **rules)
    calm, _ = play("kimi-dense", REQUESTS, roomy(FORCED), **rules)
    wrong, _ = play("kimi-dense", REQUESTS, FORCED, verify=False, **rules)
    assert said(wrong) != said(calm)


def test_in_common_forwards_it_holds_up_to_rounding_and_not_bit_for_bit() -> None:
    calm, _ = play("kimi-moe", REQUESTS, roomy(FORCED), batch_invariant=False)
    shaken, _ = play("kimi-moe", REQUESTS, FORCED, batch_invariant=False)
    apart = 0.0
    for rid, stream in calm.streams.items():
        assert shaken.streams[rid].tokens == stream.tokens
        pairs = zip(stream.logprobs, shaken.streams[rid].logprobs, strict=True)
        apart = max([apart, *(abs(a - b) for a, b in pairs)])
    assert 0 < apart < 2e-5


def test_a_request_that_is_recomputed_says_the_same_up_to_rounding() -> None:
    config = replace(FORCED, restore="recompute")
    calm, _ = play("kimi-moe", REQUESTS, roomy(config))
    shaken, result = play("kimi-moe", REQUESTS, config)
    assert result.counters.recomputed_tokens > 0
    for rid, stream in calm.streams.items():
        assert shaken.streams[rid].tokens == stream.tokens
        assert shaken.streams[rid].logprobs == pytest.approx(stream.logprobs, abs=2e-5)


class StateLeftBehind(ModelCells):
    """The defect of upstream issue 35957: rows come back, the recurrent state does not."""

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        super().restore(rid, backups, slots)
        states, slot = self.sharded.pools.states, self._held[rid].state
        assert states is not None
        states.conv[:, slot] = 0
        states.temporal[:, slot] = 0


class RawRows(ModelCells):
    """The defect of upstream issue 38645, every id in range: widened ids are used as rows."""

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        copies = [crash.copy_out(p.buffer, slots.ids) for p in self.sharded.pools.ranks]
        self.saved = {**getattr(self, "saved", {}), rid: copies}
        return super().back_up(rid, slots)

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        super().restore(rid, backups, slots)
        self.sharded.pools.fill(slots, 0.0)
        for pool, copy in zip(self.sharded.pools.ranks, self.saved[rid], strict=True):
            crash.copy_in(pool.buffer, copy, slots.ids)


def in_range(dcp_size: int) -> NodeConfig:
    """A pool so large that the few pages in use have every widened id below the bound of rows."""
    return replace(FORCED, layout=DcpLayout(dcp_size, 2, 400))


@pytest.mark.parametrize("defect", [StateLeftBehind, RawRows])
def test_each_defect_is_named_by_the_check_and_seen_in_the_logprobs(
    defect: type[ModelCells],
) -> None:
    with pytest.raises(PoolError, match=r"request \d must come back as it left"):
        play("kimi-dense", REQUESTS, in_range(4), cells_of=defect)
    calm, _ = play("kimi-dense", REQUESTS, in_range(4))
    wrong, _ = play("kimi-dense", REQUESTS, in_range(4), cells_of=defect, verify=False)
    apart = [
        abs(a - b)
        for rid, stream in calm.streams.items()
        for a, b in zip(stream.logprobs, wrong.streams[rid].logprobs, strict=True)
    ]
    # NaN where a freed row was read: not below any bound either.
    assert not max(apart, key=lambda x: float("inf") if x != x else x) < 1e-2


def test_raw_rows_do_nothing_on_one_rank() -> None:
    calm, _ = play("kimi-dense", REQUESTS, in_range(1))
    wrong, result = play("kimi-dense", REQUESTS, in_range(1), cells_of=RawRows)
    assert result.counters.resumed_requests > 0
    assert said(wrong) == said(calm)


def test_the_state_travels_with_rank_0_and_rows_with_each_rank() -> None:
    sharded = ShardedModel(model("kimi-dense"), DcpLayout(3, 2, 8), requests=1)
    slot = sharded.pools.alloc_state()
    slots = WidenedSlots(torch.arange(6, 13))
    backups = sharded.pools.back_up(slots, slot)
    assert [b.state is not None for b in backups] == [True, False, False]
    assert [b.rows for b in backups] == [3, 2, 2]
