"""A host that is full: who finds no room there is aborted or prefilled again, others come back.

The mix of both ways is held against the judge of ``reference_node.py``: with a bound in tokens for
both schedulers, and with the real arenas of every rank for the one that has them.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine import Counters, CountingNode, FingerprintCells, NodeConfig, StepNode
from kvlab.engine.policy import HostFull
from kvlab.engine.workload import Request
from kvlab.errors import BackupError
from kvlab.index import DcpLayout, Shard, WidenedSlots, get_dcp_lens
from kvlab.memory import HostArena, KvBackup
from tests.engine.reference_node import ReferenceNode, Req, reference
from tests.memory.late import late

Run = tuple[tuple[Request, ...], NodeConfig]
FULL: st.SearchStrategy[HostFull] = st.sampled_from(["abort", "recompute"])


@st.composite
def pressed(draw: st.DrawFn, bounded: bool = True) -> Run:
    """Some requests, a pool for about two of them, and a host for about one (or no such bound)."""
    lengths = st.tuples(st.integers(1, 12), st.integers(4, 16))
    rows = draw(st.lists(lengths, min_size=4, max_size=8))
    gap = draw(st.sampled_from([0.0, 0.0, 3.0]))
    requests = tuple(Request(i, gap * i, p, o) for i, (p, o) in enumerate(rows))
    dcp_size, page_size = draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (3, 1), (4, 1), (2, 4)]))
    longest = max(p + o for p, o in rows)
    tokens = longest + draw(st.integers(6, 30))
    config = NodeConfig(
        DcpLayout(dcp_size, page_size, -(-tokens // (dcp_size * page_size))),
        reserved_decode_tokens=draw(st.integers(0, 4)),
        clip_max_new_tokens=draw(st.sampled_from([1, 3, 4096])),
        concurrency=draw(st.none() | st.integers(3, 6)),
        admission=draw(st.sampled_from(["reserved", "new_token_ratio"])),
        force_retract_interval=draw(st.sampled_from([None, 1, 2, 5])),
        host_capacity_tokens=draw(st.integers(longest // 2, 2 * longest)) if bounded else None,
        host_full=draw(FULL),
        step_time_s=1.0,
        initial_new_token_ratio=0.1,
    )
    return requests, config


def mixed(count: Counters) -> bool:
    """Whether one run used both ways back."""
    return count.resumed_requests > 0 and count.recomputed_tokens > 0


def test_both_schedulers_mix_backup_and_recompute_as_the_judge_does() -> None:
    met: list[bool] = []

    @settings(max_examples=50, derandomize=True, database=None)
    @given(pressed())
    def law(run: Run) -> None:
        requests, config = run
        judged = reference(requests, config)
        assert CountingNode(config).run(requests, record=True) == judged
        assert StepNode(config).run(requests, record=True) == judged
        met.append(mixed(judged.counters))

    law()
    assert sum(met) > 2  # the mix is common among these runs, or they would show little


@settings(max_examples=30, derandomize=True)
@given(pressed(bounded=False))
def test_a_host_without_room_for_anything_gives_what_restore_by_recompute_gives(run: Run) -> None:
    requests, config = run
    none = replace(config, host_capacity_tokens=0, host_full="recompute")
    declined = CountingNode(none).run(requests, record=True)
    asked_for = CountingNode(replace(config, restore="recompute")).run(requests, record=True)
    count = declined.counters
    assert count.declined_backups == count.retracted_requests
    assert replace(count, declined_backups=0) == asked_for.counters
    assert (declined.outcomes, declined.events) == (asked_for.outcomes, asked_for.events)


@dataclass
class ArenaNode(ReferenceNode):
    """The judge with arenas instead of a bound in tokens: each rank takes a block of its rows."""

    arenas: list[HostArena] = field(default_factory=list)
    row_bytes: int = 0
    held: dict[int, list[object]] = field(default_factory=dict)

    def host_takes(self, req: Req) -> bool:
        self.give_back()
        ranks, kv = len(self.arenas), torch.tensor([req.kv])
        lens = [int(get_dcp_lens(kv, Shard(ranks, rank))) for rank in range(ranks)]
        blocks = []
        for arena, rows in zip(self.arenas, lens, strict=True):
            block = arena.take(rows * self.row_bytes)
            if block is None:
                break
            blocks.append(block)
        if len(blocks) < len(self.arenas):
            for arena, block in zip(self.arenas, blocks, strict=False):
                arena.give(block)
            return False
        self.held[req.rid] = list(blocks)
        return True

    def give_back(self) -> None:
        """Blocks of those who are no longer on the host, in the order in which they left it."""
        on_host = {req.rid for req in self.retracted}
        for rid in [rid for rid in self.held if rid not in on_host]:
            for arena, block in zip(self.arenas, self.held.pop(rid), strict=True):
                arena.give(block)  # type: ignore[arg-type]  # blocks of these arenas


GRAIN = 64  # four rows of one layer: sizes differ, and blocks are reused for smaller backups


def arenas(ranks: int, blocks: list[int]) -> list[HostArena]:
    return [HostArena(GRAIN * blocks[r % len(blocks)], grain=GRAIN) for r in range(ranks)]


def cells_of(layout: DcpLayout, seed: int | None) -> FingerprintCells:
    """With a seed, backups are in flight while the scheduler goes on, and land in its order."""
    if seed is None:
        return FingerprintCells(layout)
    return FingerprintCells(layout, transfer=lambda: late(seed), wait=False)


def test_what_the_real_arenas_decline_is_what_their_sizes_say_and_nothing_stays_lent() -> None:
    met: list[bool] = []

    @settings(max_examples=25, derandomize=True, database=None)
    @given(
        pressed(bounded=False),
        st.lists(st.integers(2, 8), min_size=1, max_size=3),
        st.none() | st.integers(0, 9),
    )
    def law(run: Run, blocks: list[int], seed: int | None) -> None:
        requests, config = run
        ranks = config.layout.dcp_size
        cells = cells_of(config.layout, seed)
        for pool, arena in zip(cells.pools, arenas(ranks, blocks), strict=True):
            pool.host.capacity_bytes, pool.host.grain = arena.capacity_bytes, GRAIN
        node = StepNode(config, cells, check_every_step=True)
        stepped = node.run(requests, record=True)
        judge = ArenaNode(config, list(requests), arenas=arenas(ranks, blocks), row_bytes=16)
        assert stepped == judge.run()
        assert node.audit() == cells.audit() == []
        assert [pool.host.lent_bytes for pool in cells.pools] == [0] * ranks
        assert node.allocator.available_size() == config.layout.capacity_tokens
        met.append(mixed(stepped.counters))

    law()
    assert any(met)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("tight", [0, 3])
def test_one_rank_without_room_declines_for_all_and_the_others_give_theirs_back(
    tight: int, seed: int | None
) -> None:
    requests = tuple(Request(i, 0.0, 16, 96) for i in range(4))
    config = NodeConfig(DcpLayout(4, 4, 18), reserved_decode_tokens=8, host_full="recompute")
    cells = cells_of(config.layout, seed)
    cells.pools[tight].host.capacity_bytes = 0
    node = StepNode(config, cells, check_every_step=True)
    count = node.run(requests).counters
    assert count.finished == 4
    assert count.declined_backups == count.retracted_requests > 0
    assert count.backed_up_tokens == count.restored_tokens == 0
    assert count.recomputed_tokens > 0
    assert [pool.host.lent_bytes for pool in cells.pools] == [0, 0, 0, 0]
    assert node.audit() == cells.audit() == []


def test_a_backup_that_fails_for_another_reason_is_no_declined_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = tuple(Request(i, 0.0, 16, 96) for i in range(4))
    config = NodeConfig(DcpLayout(4, 4, 18), reserved_decode_tokens=8, host_full="recompute")
    cells = FingerprintCells(config.layout)

    def broken(rid: int, slots: WidenedSlots) -> list[KvBackup]:
        raise BackupError("the checksum is another one")

    monkeypatch.setattr(cells, "back_up", broken)
    with pytest.raises(BackupError, match="the checksum is another one"):
        StepNode(config, cells).run(requests)
