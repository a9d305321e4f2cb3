"""fp8 rows with a scale each: what comes back, how near, and that nothing moves one without the
other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.errors import BackupError, PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import MLATokenToKVPool, PageTable, UnifiedKVPool
from kvlab.memory.codec import RowCodec

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LAYOUT = DcpLayout(2, 4, 8)
OLD, NEW = WidenedSlots(torch.arange(8, 19)), WidenedSlots(torch.arange(40, 51))
# (part of the value, part of the scale): half a step of the mantissa, half the least code.
BOUNDS = {E4M3: (2.0**-4, 2.0**-10), E5M2: (2.0**-3, 2.0**-17)}


def values(seed: int, rows: int, elements: int, spread: float) -> Tensor:
    """Rows of sizes that differ from each other by orders."""
    chance = torch.Generator().manual_seed(seed)
    sizes = 10 ** (spread * torch.randn(rows, 1, generator=chance)).clamp(-37, 30)  # all finite
    return torch.randn(rows, elements, generator=chance) * sizes


def pool(dtype: torch.dtype = E4M3, scaled: bool = True, unified: bool = False) -> MLATokenToKVPool:
    rules = {"layers": 2, "kv_lora_rank": 5, "qk_rope_head_dim": 2, "dtype": dtype}
    if unified:
        table = PageTable(LAYOUT, 8)
        assert table.map_pages([5, 1, 2, 6, 7])
        return UnifiedKVPool(table, 1, scaled=scaled, **rules)
    return MLATokenToKVPool(LAYOUT, 1, scaled=scaled, **rules)  # type: ignore[arg-type]


def written(unified: bool = False) -> tuple[MLATokenToKVPool, list[Tensor]]:
    """A pool that holds OLD, and what it reads there in each layer."""
    made = pool(unified=unified)
    for layer in range(2):
        rows = values(layer, 11, 7, 2.0)
        made.set_mla_kv_buffer(layer, OLD, rows[:, :5], rows[:, 5:])
    return made, read(made, OLD)


def read(made: MLATokenToKVPool, slots: WidenedSlots) -> list[Tensor]:
    return [made.get_rows(layer, made.resolve(slots)) for layer in range(2)]


def test_the_worked_example_of_the_module() -> None:
    codec = RowCodec(E4M3, 3, scaled=True)
    row = codec.encode(torch.tensor([[0.5, -1.0, 0.01]]))
    assert codec.width == 8
    assert row[0, :3].view(E4M3).tolist() == [224.0, -448.0, 4.5]
    assert codec.scales(row).tolist() == pytest.approx([1 / 448])
    assert codec.decode(row)[0].tolist() == pytest.approx([0.5, -1.0, 0.010045], rel=1e-4)


@settings(max_examples=60)
@given(
    dtype=st.sampled_from([E4M3, E5M2]),
    elements=st.integers(1, 70),
    spread=st.sampled_from([0.0, 1.0, 6.0, 12.0]),
    seed=st.integers(0, 1000),
)
def test_each_element_comes_back_within_half_a_step_of_its_code(
    dtype: torch.dtype, elements: int, spread: float, seed: int
) -> None:
    codec = RowCodec(dtype, elements, scaled=True)
    given_rows = values(seed, 9, elements, spread)
    stored = codec.encode(given_rows)
    back, scale = codec.decode(stored), codec.scales(stored)[:, None]
    assert codec.width % 4 == 0 and bool((scale > 0).all())
    of_value, of_scale = BOUNDS[dtype]
    bound = torch.maximum(given_rows.abs() * of_value, scale * of_scale) * (1 + 1e-5)
    assert bool(((back - given_rows).abs() <= bound).all())
    codes = stored[:, :elements].view(dtype).float()  # the largest value has the largest code
    assert bool((codes.abs().amax(dim=1) == torch.finfo(dtype).max).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_nan_or_an_infinity_comes_back_as_nan_and_is_named(bad: float) -> None:
    made = pool()
    rows = values(1, 11, 7, 1.0)
    rows[3, 2] = bad  # slot 11, which is rank 1's
    made.set_mla_kv_buffer(1, OLD, rows[:, :5], rows[:, 5:])
    wrong = torch.isnan(read(made, OLD)[1])
    assert wrong.all(dim=1).tolist() == [False, True, False, False, False]
    assert wrong.any(dim=1).tolist() == wrong.all(dim=1).tolist()
    (law,) = made.audit()
    assert "1 of 72 rows have a scale that is no finite number of at least 0: first layer 1" in law


def test_rows_keep_their_scales_through_a_backup_a_move_and_a_compaction() -> None:
    made, before = written(unified=True)
    assert isinstance(made, UnifiedKVPool)
    backup = made.get_cpu_copy(OLD)
    made.fill(made.resolve(OLD), math.nan)
    assert all(bool(torch.isnan(rows).all()) for rows in read(made, OLD))
    made.load_cpu_copy(backup, NEW)
    made.move_kv_cache(OLD.ids, NEW.ids)
    made.table.unmap_pages([1, 2])
    made.apply_moves(made.table.compact())
    for a, b in zip(before, read(made, NEW), strict=True):
        assert torch.equal(a, b)
    made.scales[:, made.resolve(NEW).ids] += 1.0  # without them other values are read
    assert min(float((a - b).abs().max()) for a, b in zip(before, read(made, NEW))) > 1.0  # noqa: B905


def test_a_scale_that_changed_on_the_host_is_seen_by_the_checksum() -> None:
    made, _ = written()
    backup = made.get_cpu_copy(OLD)
    made.codec.scales(backup.kv)[1, 2] *= 2
    with pytest.raises(BackupError, match="the host copy changed since it was made"):
        made.load_cpu_copy(backup, NEW)


def test_rows_with_and_without_scales_are_not_restored_into_each_other() -> None:
    made, _ = written()
    for other in (pool(scaled=False), pool(dtype=E5M2)):
        with pytest.raises(BackupError, match=r"row format is 5 \+ 2 torch\.float8_e4m3fn x a flo"):
            other.load_cpu_copy(made.get_cpu_copy(OLD), NEW)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3, E5M2])
def test_filled_rows_read_the_value_and_no_other_row_does(dtype: torch.dtype) -> None:
    made = pool(dtype=dtype, scaled=dtype.itemsize == 1)
    made.fill(PhysicalRows.assume_physical(torch.tensor([7, 5]), LAYOUT, 1), 3.5)
    every = PhysicalRows.assume_physical(torch.arange(LAYOUT.row_end), LAYOUT, 1)
    found = made.get_rows(1, every).float()
    assert set(found.flatten().tolist()) == {0.0, 3.5}
    assert torch.nonzero((found == 3.5).all(dim=1)).flatten().tolist() == [5, 7]


def test_scales_where_there_are_none_are_refused() -> None:
    with pytest.raises(PoolError, match=r"rows of torch\.float8_e4m3fn have no scale; make the"):
        _ = pool(scaled=False).scales
    with pytest.raises(PoolError, match=r"got scaled=True for rows of torch\.bfloat16"):
        pool(dtype=torch.bfloat16)
