"""The law of retraction, on a real model: who was retracted says what he would have said.

Bit for bit in float32, with one request a forward, the same chunks of prefill, ranks and threads,
and a sampler that looks at request and position only; up to rounding for who is prefilled again.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
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
ROUNDING = 2e-5  # nats, of another order of sums
Said = dict[int, tuple[list[int], list[float]]]


def play(
    kind: str,
    requests: Sequence[Request],
    config: NodeConfig,
    *,
    cells_of: type[ModelCells] = ModelCells,
    verify: bool = True,
    host_bytes: Sequence[int | None] = (),
    model_rules: dict[str, Any] | None = None,
    **rules: Any,
) -> tuple[Said, RunResult]:
    """Tokens and logprobs of each request, and the run; freed rows become NaN, all is checked after
    each step, and nothing is lent, held or broken in the end."""
    made = {"requests": len(requests), "batch_invariant": True, **(model_rules or {})}
    sharded = ShardedModel(model(kind), config.layout, **made)
    for pool, size in zip(sharded.pools.ranks, host_bytes, strict=False):
        pool.host.capacity_bytes = size
    prompts = {r.rid: prompt(100 + r.rid, r.prompt_tokens).tolist() for r in requests}
    cells = cells_of(sharded, prompts, poison=NAN, verify=verify, **rules)
    node = StepNode(config, cells, check_every_step=True)
    result = node.run(requests, record=True)
    assert node.audit() == cells.audit() == []
    assert node.allocator.available_size() == config.layout.capacity_tokens
    assert [pool.host.lent_bytes for pool in sharded.pools.ranks] == [0] * config.layout.dcp_size
    assert sharded.pools.states is None or not sharded.pools.states._used
    if result.counters.finished == len(requests):
        lengths = [len(cells.streams[r.rid].output) for r in requests]
        assert lengths == [r.output_tokens for r in requests]
    return {rid: (s.tokens, s.logprobs) for rid, s in sorted(cells.streams.items())}, result


def roomy(config: NodeConfig) -> NodeConfig:
    """The same ranks with room for all, and nobody forced out."""
    lay = DcpLayout(
        config.layout.dcp_size, config.layout.interleave, 2000, config.layout.interleave
    )
    return replace(config, layout=lay, force_retract_interval=None)


def require_same(calm: Said, shaken: Said, again: set[int]) -> None:
    """Bit for bit, but for those that were prefilled ``again``."""
    assert calm.keys() == shaken.keys()
    for rid, (tokens, logprobs) in calm.items():
        assert shaken[rid][0] == tokens
        assert shaken[rid][1] == (
            pytest.approx(logprobs, abs=ROUNDING) if rid in again else logprobs
        )


def prefilled_again(result: RunResult, requests: Sequence[Request]) -> set[int]:
    """The requests that entered with tokens of their own."""
    lens = {r.rid: r.prompt_tokens for r in requests}
    return {e.rid for e in result.events if e.kind == "admit" and e.tokens > lens[e.rid]}


@st.composite
def schedules(draw: st.DrawFn) -> tuple[tuple[Request, ...], NodeConfig]:
    """Two to four requests on a node that is short, or forces somebody out, or both; its host may
    hold little."""
    lengths = st.tuples(st.integers(1, 10), st.integers(1, 9))
    pairs = draw(st.lists(lengths, min_size=2, max_size=4))
    requests = tuple(Request(i, 0.02 * i, p, o) for i, (p, o) in enumerate(pairs))
    size = draw(st.sampled_from([(1, 4, 1), (2, 2, 1), (2, 4, 2), (3, 1, 1), (8, 1, 1)]))
    wide = size[0] * size[1]
    pages = -(-max(p + o for p, o in pairs) // wide) + 2 + draw(st.integers(0, 3))
    return requests, NodeConfig(
        DcpLayout(size[0], size[1], pages, size[2]),
        reserved_decode_tokens=1,
        force_retract_interval=draw(st.sampled_from([1, 2, 3])),
        host_capacity_tokens=draw(st.sampled_from([None, None, 12])),
        host_full="recompute",
    )


@settings(max_examples=12, derandomize=True)
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
    require_same(calm, shaken, prefilled_again(result, requests))
    # And the model changes nothing in what the scheduler counts.
    assert result == CountingNode(config).run(requests, record=True)


REQUESTS = tuple(Request(i, 0.0, 4 + 2 * i, 12 + i) for i in range(4))
FORCED = NodeConfig(DcpLayout(4, 2, 12), reserved_decode_tokens=4, force_retract_interval=2)
KIMI, DEEPSEEK = "kimi-moe", "deepseek-v3"
F8, BF16 = torch.float8_e4m3fn, torch.bfloat16


@cache
def calm(kind: str, handover: bool = False, kv_dtype: torch.dtype | None = None) -> Said:
    """What the requests say where nobody is retracted."""
    rules = {"kv_dtype": kv_dtype}
    return play(kind, REQUESTS, roomy(FORCED), model_rules=rules, handover=handover)[0]


@pytest.mark.parametrize(
    ("kind", "handover", "kv_dtype"),
    [
        (DEEPSEEK, True, None),
        (KIMI, False, F8),
        (KIMI, True, torch.float8_e5m2),
        (DEEPSEEK, False, BF16),
    ],
)
def test_the_law_holds_for_rows_of_every_dtype_over_many_retractions(
    kind: str, handover: bool, kv_dtype: torch.dtype | None
) -> None:
    rules = {"kv_dtype": kv_dtype}
    shaken, result = play(kind, REQUESTS, FORCED, model_rules=rules, handover=handover)
    assert result.counters.resumed_requests == result.counters.retracted_requests > 5
    assert shaken == calm(kind, handover, kv_dtype)


def test_it_holds_where_ranks_take_turns_of_more_than_one_position() -> None:
    config = replace(FORCED, layout=DcpLayout(3, 2, 12, 2))
    shaken, result = play(KIMI, REQUESTS, config)
    assert result.counters.resumed_requests > 5
    assert shaken == play(KIMI, REQUESTS, roomy(config))[0]


def test_in_common_forwards_it_holds_up_to_rounding_and_not_bit_for_bit() -> None:
    rules = {"batch_invariant": False}
    one, _ = play(KIMI, REQUESTS, roomy(FORCED), model_rules=rules)
    two, _ = play(KIMI, REQUESTS, FORCED, model_rules=rules)
    require_same(one, two, set(one))
    assert one != two


@pytest.mark.parametrize("kind", [KIMI, DEEPSEEK])
def test_a_request_that_is_recomputed_says_the_same_up_to_rounding(kind: str) -> None:
    shaken, result = play(kind, REQUESTS, replace(FORCED, restore="recompute"))
    assert result.counters.recomputed_tokens > 0
    require_same(calm(kind), shaken, set(shaken))


@pytest.mark.parametrize("handover", [False, True])
def test_of_those_retracted_the_declined_agree_up_to_rounding_and_the_others_bit_for_bit(
    handover: bool,
) -> None:
    # A rank's arena has one block of 4096 bytes: the rows of one request, and of no second. The
    # pool is short as well, so that two are out at once.
    config = replace(FORCED, layout=DcpLayout(4, 2, 7), host_full="recompute")
    rules: dict[str, Any] = {"handover": handover}
    shaken, result = play(KIMI, REQUESTS, config, host_bytes=[4096] * 4, **rules)
    count = result.counters
    assert count.finished == len(REQUESTS)
    assert count.declined_backups > 0 and count.resumed_requests > 0
    again = prefilled_again(result, REQUESTS)
    assert 0 < len(again) < len({o.rid for o in result.outcomes if o.retractions})
    require_same(calm(KIMI, handover), shaken, again)


@pytest.mark.parametrize("host_full", ["recompute", "abort"])
def test_one_rank_without_room_leaves_nothing_of_the_others_on_the_host(host_full: Any) -> None:
    sizes = [None, None, 0, None]
    config = replace(FORCED, host_full=host_full)
    shaken, result = play(KIMI, REQUESTS, config, host_bytes=sizes)
    count = result.counters
    assert count.declined_backups > 0 == count.backed_up_tokens
    if host_full == "recompute":
        assert count.declined_backups == count.retracted_requests
        require_same(calm(KIMI), shaken, prefilled_again(result, REQUESTS))
    for rid, (tokens, logprobs) in calm(KIMI).items():  # an abort changes nobody else
        n = len(shaken[rid][1])
        assert shaken[rid][0] == tokens[: len(shaken[rid][0])]
        assert shaken[rid][1] == pytest.approx(logprobs[:n], abs=ROUNDING)


# Defects -----------------------------------------------------------------------------------------


class ScalesLeftBehind(ModelCells):
    """fp8 rows come back, their scales do not: those of who had the rows before are left."""

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        ranks = self.sharded.pools.ranks
        left = [(pool.resolve(slots).ids, pool.scales.clone()) for pool in ranks]
        super().restore(rid, backups, slots)
        for pool, (rows, scales) in zip(ranks, left, strict=True):
            pool.scales[:, rows] = scales[:, rows]


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


@pytest.mark.parametrize(
    ("defect", "kv_dtype"), [(StateLeftBehind, None), (RawRows, None), (ScalesLeftBehind, F8)]
)
def test_each_defect_is_named_by_the_check_and_seen_in_the_logprobs(
    defect: type[ModelCells], kv_dtype: torch.dtype | None
) -> None:
    rules: dict[str, Any] = {"cells_of": defect, "model_rules": {"kv_dtype": kv_dtype}}
    config = FORCED if defect is ScalesLeftBehind else in_range(4)
    with pytest.raises(PoolError, match=r"request \d must come back as it left: \d+ of \d+ elem"):
        play(KIMI, REQUESTS, config, **rules)
    wrong, _ = play(KIMI, REQUESTS, config, verify=False, **rules)
    right = calm(KIMI, False, kv_dtype)
    apart = [
        abs(a - b)
        for rid, (_, logprobs) in right.items()
        for a, b in zip(logprobs, wrong[rid][1], strict=True)
    ]
    # NaN where a freed row was read: not below any bound either.
    assert not max(apart, key=lambda x: float("inf") if x != x else x) < 1e-2


def test_raw_rows_do_nothing_on_one_rank() -> None:
    wrong, result = play(KIMI, REQUESTS, in_range(1), cells_of=RawRows)
    assert result.counters.resumed_requests > 0
    assert wrong == play(KIMI, REQUESTS, roomy(in_range(1)))[0]


def test_the_state_travels_with_rank_0_and_rows_with_each_rank() -> None:
    sharded = ShardedModel(model("kimi-dense"), DcpLayout(3, 2, 8), requests=1)
    slots = WidenedSlots(torch.arange(6, 13))
    backups = sharded.pools.back_up(slots, sharded.pools.alloc_state())
    assert [b.state is not None for b in backups] == [True, False, False]
    assert [b.rows for b in backups] == [3, 2, 2]
