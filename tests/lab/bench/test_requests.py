"""Backup and restore by size: the same rows both ways, cold memory, and cases that fit."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import request_pool, requests, upstream
from kvlab.lab.bench.request_pool import RequestBench
from kvlab.lab.bench.rows import LeftOut
from kvlab.memory import KvBackup, MLATokenToKVPool
from tests.lab.bench.support import FEW_TOKENS, HERE


@pytest.mark.parametrize(("dcp_size", "tokens"), [(1, 200), (3, 400), (4, 520), (8, 5)])
def test_both_ways_copy_the_same_rows_there_and_back(dcp_size: int, tokens: int) -> None:
    bench = RequestBench(replace(FEW_TOKENS, dcp_size=dcp_size, tokens=tokens), HERE)
    requests.require_equal(bench)
    backup, chunks = bench.back_up(1), bench.back_up_upstream(1)
    joined = torch.stack([torch.cat(layer) for layer in chunks])
    assert torch.equal(backup.kv.view(torch.int16), joined.view(torch.int16))


def test_upstream_rows_of_other_slots_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "stride", lambda ids, c, r: (ids[r::c] // c).flip(0))
    with pytest.raises(StudyError, match="ours and upstream's loop copy different rows"):
        requests.rows_of(FEW_TOKENS, HERE)


@pytest.mark.parametrize("where", ["ours", "upstream"])
def test_a_restore_that_writes_nothing_is_seen(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def nothing(*_: object, **__: object) -> None:
        return

    if where == "ours":
        monkeypatch.setattr(MLATokenToKVPool, "load_cpu_copy", nothing)
    else:
        monkeypatch.setattr(upstream, "restore", nothing)
    with pytest.raises(StudyError, match="what is timed must be right"):
        requests.require_equal(RequestBench(FEW_TOKENS, HERE))


def test_requests_share_no_row_and_go_back_to_other_pages() -> None:
    place = replace(HERE, cache_bytes=4 * FEW_TOKENS.request_bytes)
    bench = RequestBench(FEW_TOKENS, place)
    assert bench.count * FEW_TOKENS.request_bytes >= 2 * place.cache_bytes
    slots = torch.cat(bench.ids)
    assert len(set(slots.tolist())) == len(slots) == bench.count * FEW_TOKENS.tokens
    assert not any(torch.equal(a, b) for a, b in zip(bench.ids, bench.others, strict=True))


def test_the_three_of_a_round_are_at_different_requests_in_different_memory() -> None:
    bench = RequestBench(FEW_TOKENS, replace(HERE, cache_bytes=3 * FEW_TOKENS.request_bytes))
    assert bench.count == 6
    seen = Counter[int]()
    ours, *_ = bench.backups()
    for i in range(2 * bench.count):
        result = ours.prepare(i)()
        assert isinstance(result, KvBackup)
        seen[result.kv.data_ptr()] += 1
        ours.finish(result)
    assert list(seen.values()) == [2] * bench.count  # blocks take turns as well
    assert [bench._apart(i) for i in range(3)] == [0, 2, 4]


def test_a_single_request_keeps_no_backup_while_the_next_is_made() -> None:
    bench = RequestBench(FEW_TOKENS, replace(HERE, cache_bytes=1))
    assert bench.count == 1
    for contender in (*bench.backups(), *bench.restores()):
        contender.finish(contender.prepare(0)())
        assert bench.pool.host.lent_bytes == 0
    assert bench.pool.host.idle_bytes == bench.pool.host.grain


def test_a_restore_takes_the_oldest_of_the_backups_made_for_it() -> None:
    bench = RequestBench(FEW_TOKENS, replace(HERE, cache_bytes=2 * FEW_TOKENS.request_bytes))
    for contender in bench.restores():
        for i in range(3):
            contender.finish(contender.prepare(i)())
    assert bench.pool.host.audit() == []
    assert bench.count == 4
    assert bench.pool.host.lent_bytes == 2 * (bench.count - 1) * bench.pool.host.grain


def test_rows_of_a_case_hold_its_sizes_and_a_share_of_the_copy() -> None:
    rows = requests.rows_of(FEW_TOKENS, HERE)
    assert [(row.ours, row.baseline) for row in rows] == [
        (request_pool.OURS, request_pool.UPSTREAM),
        (request_pool.OURS, request_pool.OUT),
        (request_pool.RESTORE, request_pool.UPSTREAM_BACK),
        (request_pool.RESTORE, request_pool.BACK),
    ]
    assert [row.facts.op for row in rows] == ["backup", "backup", "restore", "restore"]
    for row in rows:
        facts = row.facts
        assert (facts.layers, facts.tokens, facts.dcp_size, facts.backend) == (2, 520, 4, "torch")
        assert facts.bytes == 2 * 130 * (8 + 64) * 2
        assert row.share_of_copy is not None
        assert row.aim is None  # those of a GPU are not a CPU's
    assert rows[1].share_of_copy == rows[1].ratio.median


def test_blocks_of_pinned_memory_are_counted_as_powers_of_two() -> None:
    there = replace(HERE, device=torch.device("cuda", 0), device_bytes=2**40)
    largest = requests.FULL[-4]
    assert largest.requests(there) == 1
    assert largest.request_bytes == 61 * 65_536 * 576 * 2  # 4.3 GiB
    host, device = largest.needs(there)
    assert (host, device) == (3 * 2**33, largest.request_bytes + 2**28)
    assert largest.needs(HERE) == (3 * largest.request_bytes, largest.request_bytes)


def test_the_grid_is_of_two_models_one_to_sixty_four_thousand_tokens_and_four_dcp_sizes() -> None:
    grid = {(case.layers, case.tokens // 2**10, case.dcp_size) for case in requests.FULL}
    assert len(grid) == len(requests.FULL) == 32
    assert {a for a, _, _ in grid} == {27, 61}
    assert {b for _, b, _ in grid} == {1, 4, 16, 64}
    assert {c for _, _, c in grid} == {1, 2, 4, 8}


def test_a_case_that_the_machine_cannot_hold_is_a_line_with_its_need_and_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "QUICK", (requests.FULL[-4], FEW_TOKENS))
    little = replace(HERE, host_bytes=2 * 2**30)
    first, second = requests.measure(True, little)
    assert isinstance(first, LeftOut)
    assert first.sentence() == (
        "left out: copy, 61 layers x 64k tokens x 576 bf16, c=1: a timing must not swap: it takes "
        "17.16 GiB of memory, at most 1.50 may be taken, three quarters of 2.00"
    )
    assert isinstance(second, list)
