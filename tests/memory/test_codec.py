"""fp8 rows with a scale each: what comes back, how near, and that nothing moves one without the
other."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.errors import BackupError, LayoutError, PoolError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.memory import KvBackup, MLATokenToKVPool, PageTable, ReplicatedKVPool, UnifiedKVPool
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


def pool(kind: str = "sharded", dtype: torch.dtype = E4M3, scaled: bool = True) -> MLATokenToKVPool:
    rules = {"layers": 2, "kv_lora_rank": 5, "qk_rope_head_dim": 2, "dtype": dtype}
    if kind == "resolved":
        table = PageTable(LAYOUT, 8)
        table.map_pages([5, 1, 2, 6, 7])
        return UnifiedKVPool(table, 1, scaled=scaled, **rules)
    made = MLATokenToKVPool if kind == "sharded" else ReplicatedKVPool
    return made(LAYOUT, 1, scaled=scaled, **rules)  # type: ignore[arg-type]


def written(kind: str = "sharded") -> tuple[MLATokenToKVPool, list[Tensor]]:
    """A pool that holds OLD, and what it reads there in each layer."""
    made = pool(kind)
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
    codec.scales(row)[0] = 1.0
    assert codec.decode(row)[0].tolist() == [224.0, -448.0, 4.5]


@settings(max_examples=150)
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


def test_without_a_scale_small_rows_are_lost() -> None:
    small = values(3, 20, 16, 0.0) * 1e-4
    plain, scaled = RowCodec(E4M3, 16), RowCodec(E4M3, 16, scaled=True)
    assert bool((plain.decode(plain.encode(small.to(E4M3))).float() == 0).all())
    back = scaled.decode(scaled.encode(small))
    assert float((back - small).abs().max()) < 1e-4 * 0.25


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


def test_zeros_and_the_least_numbers_come_back() -> None:
    codec = RowCodec(E4M3, 4, scaled=True)
    assert codec.decode(codec.encode(torch.zeros(2, 4))).tolist() == [[0.0] * 4] * 2
    least = torch.full((1, 4), 1e-39)
    assert float(codec.decode(codec.encode(least)).abs().max()) < 2e-38


@pytest.mark.parametrize("kind", ["sharded", "replicated", "resolved"])
def test_a_restored_request_reads_bit_for_bit_what_it_read(kind: str) -> None:
    made, before = written(kind)
    backup = made.get_cpu_copy(OLD)
    made.fill(made.resolve(OLD), math.nan)
    assert all(bool(torch.isnan(rows).all()) for rows in read(made, OLD))
    made.load_cpu_copy(backup, NEW)
    for a, b in zip(before, read(made, NEW), strict=True):
        assert torch.equal(a, b)
    assert made.audit() == []


@pytest.mark.parametrize("kind", ["sharded", "replicated", "resolved"])
def test_a_restore_that_forgets_the_scales_reads_other_values(kind: str) -> None:
    made, before = written(kind)
    backup = made.get_cpu_copy(OLD)
    rows = made.resolve(NEW).ids
    left = made.scales[:, rows].clone()
    made.load_cpu_copy(backup, NEW)
    made.scales[:, rows] = left + 1.0
    apart = [float((a - b).abs().max()) for a, b in zip(before, read(made, NEW), strict=True)]
    assert min(apart) > 1.0


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


def test_a_move_takes_the_scales_along() -> None:
    made, before = written()
    made.move_kv_cache(NEW.ids, OLD.ids)
    for a, b in zip(before, read(made, NEW), strict=True):
        assert torch.equal(a, b)


def test_a_compaction_takes_the_scales_along() -> None:
    made, _ = written("resolved")
    assert isinstance(made, UnifiedKVPool)
    backup: KvBackup = made.get_cpu_copy(OLD)
    made.load_cpu_copy(backup, NEW)
    before = read(made, NEW)
    made.table.unmap_pages([1, 2])
    made.apply_moves(made.table.compact())
    for a, b in zip(before, read(made, NEW), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3, E5M2])
def test_filled_rows_read_the_value_and_no_other_row_does(dtype: torch.dtype) -> None:
    made = pool(dtype=dtype, scaled=dtype.itemsize == 1)
    made.fill(PhysicalRows.assume_physical(torch.tensor([7, 5]), LAYOUT, 1), 3.5)
    every = PhysicalRows.assume_physical(torch.arange(LAYOUT.row_end), LAYOUT, 1)
    found = made.get_rows(1, every).float()
    assert set(found.flatten().tolist()) == {0.0, 3.5}
    assert torch.nonzero((found == 3.5).all(dim=1)).flatten().tolist() == [5, 7]
    with pytest.raises(ValueError, match="a read takes PhysicalRows"):
        made.fill(torch.tensor([1]), 0.0)  # type: ignore[arg-type]


def test_a_written_padding_scale_is_a_written_padding_page() -> None:
    made, _ = written()
    made.scales[0, 0] = 0.5
    assert made.audit() == ["the padding page of rank 1 was written"]


def test_scales_where_there_are_none_are_refused() -> None:
    with pytest.raises(PoolError, match=r"rows of torch\.float8_e4m3fn have no scale: make the"):
        _ = pool(scaled=False).scales
    with pytest.raises(PoolError, match=r"got scaled=True for rows of torch\.bfloat16"):
        pool(dtype=torch.bfloat16)


def test_a_codec_refuses_what_is_no_number_and_no_size() -> None:
    codec: Any = RowCodec(E4M3, 4, True)
    for number in ("x", None, 1j, True):
        with pytest.raises(PoolError, match="rows are filled with one number"):
            codec.filled(number, torch.device("cpu"))
    for elements in (0, -1, True, 1.5):
        with pytest.raises(LayoutError, match="elements must be"):
            RowCodec(E4M3, elements)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_largest_value_of_a_row_is_the_largest_code_of_its_dtype(dtype: torch.dtype) -> None:
    codec = RowCodec(dtype, 6, True)
    rows = codec.encode(values(3, 20, 6, 2.0))
    codes = rows[:, :6].view(dtype).float()
    assert codes.abs().amax(dim=1).tolist() == [torch.finfo(dtype).max] * 20
