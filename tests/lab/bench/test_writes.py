"""Every writer that is timed stores the same rows, of its own slots alone."""

from dataclasses import replace

import pytest
import torch

from kvlab.errors import StudyError
from kvlab.lab.bench import upstream, writes
from kvlab.lab.bench.writes import WriteBench, WriteCase
from tests.lab.bench.support import BRIEF, FEW_WRITES, HERE, require_whole

PAGES = WriteCase(512, 4, True, BRIEF)


@pytest.mark.parametrize("case", [FEW_WRITES, PAGES, replace(FEW_WRITES, dcp_size=1)])
def test_every_writer_leaves_the_same_layer(case: WriteCase) -> None:
    bench = WriteBench(case, HERE)
    writes.require_equal(bench, bench.ways())
    assert list(bench.ways()) == [writes.EAGER, writes.POOL, "set_mla_kv_buffer, torch"]
    require_whole(writes.rows_of(case, HERE))


@pytest.mark.parametrize("case", [FEW_WRITES, PAGES])
def test_steps_share_no_slot_and_each_has_as_many_of_every_rank(case: WriteCase) -> None:
    bench = WriteBench(case, HERE)
    slots = torch.cat([step.ids for step in bench.steps])
    assert len(set(slots.tolist())) == len(slots) == case.steps(HERE) * case.ids
    for step in bench.steps:
        assert torch.bincount(step.ids % 4).tolist() == [case.ids // 4] * 4
        assert step.k_nope.shape[1] + step.k_rope.shape[1] == 576
        assert step.k_nope.isfinite().all()
        assert step.k_rope.isfinite().all()
        assert step.source.nbytes == step.target.nbytes == case.copy_bytes
    assert case.steps(HERE) * 2 * case.copy_bytes >= 2 * HERE.cache_bytes


def test_pages_come_whole_and_decode_slots_mixed() -> None:
    paged = WriteBench(PAGES, HERE).steps[0].ids
    assert torch.equal(paged.view(-1, 256) % 256, torch.arange(256).expand(2, 256))
    mixed = WriteBench(FEW_WRITES, HERE).steps[0].ids
    assert not torch.equal(mixed, mixed.sort().values)


def test_a_writer_that_stores_other_rows_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_them(layer: torch.Tensor, ids: torch.Tensor, *rest: torch.Tensor) -> None:
        layer[ids // 4] = torch.cat(rest[:2], dim=1)

    monkeypatch.setattr(upstream, "write_owned", all_of_them)
    with pytest.raises(StudyError, match=r"upstream's eager write, .* do not store the same rows"):
        writes.rows_of(FEW_WRITES, HERE)


def test_the_copy_is_half_of_the_ids_and_of_the_rows_read_and_written() -> None:
    case = WriteCase(8192, 8, True)
    assert 2 * case.copy_bytes == 8 * 8192 + 2 * 1024 * 1152
    for row in writes.rows_of(FEW_WRITES, HERE):
        assert (row.facts.op, row.facts.ids, row.facts.dcp_size) == ("owner_write", 64, 4)
        assert row.facts.bytes == FEW_WRITES.copy_bytes
        assert row.share_of_copy is not None
