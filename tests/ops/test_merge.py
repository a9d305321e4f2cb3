"""The twin of the merge takes three dtypes; whatever else is merged, torch merges."""

import math

import pytest
import torch

from kvlab.ops import merge_stacked
from tests.ops.support import needs_interpreter

FLOATS = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@needs_interpreter
@pytest.mark.parametrize("d", [0, 5])
@pytest.mark.parametrize("of_lse", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_partials_of_every_float_dtype_are_merged_whatever_the_backend(
    dtype: torch.dtype, of_lse: torch.dtype, d: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    out = torch.randn(3, 2, 4, d, generator=generator).to(dtype)
    lse = (torch.randn(3, 2, 4, generator=generator) * 4).to(of_lse)
    wanted = merge_stacked(out, lse, backend="torch")
    found = merge_stacked(out, lse, backend="triton")
    assert (found.out.dtype, found.lse.dtype) == (wanted.out.dtype, wanted.lse.dtype)
    near = max(1e-5, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.out.double(), wanted.out.double(), rtol=near, atol=near)
    torch.testing.assert_close(found.lse, wanted.lse)


@needs_interpreter
def test_strided_and_expanded_partials_are_merged() -> None:
    out, lse = torch.randn(5, 3, 4, 8).transpose(1, 2), torch.randn(5, 3, 4).transpose(1, 2)
    for given in (out, out[:1].expand(5, 4, 3, 8), out[..., ::2]):
        wanted = merge_stacked(given, lse, backend="torch")
        found = merge_stacked(given, lse, backend="triton")
        torch.testing.assert_close(found.out, wanted.out)
        torch.testing.assert_close(found.lse, wanted.lse)


@needs_interpreter
@pytest.mark.parametrize("lse", [0.0, -2e4, math.nan, math.inf])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_twin_lets_a_nan_of_a_shard_with_keys_through_and_no_other(
    rank: int, lse: float
) -> None:
    out, lses = torch.ones(3, 4, 5), torch.zeros(3, 4)
    out[rank, 1], lses[rank, 1] = math.nan, lse
    out[rank, 2], lses[rank, 2] = math.nan, -math.inf
    for backend in ("torch", "triton"):
        merged = merge_stacked(out, lses, backend=backend)
        assert merged.out.isnan().any(dim=-1).tolist() == [False, True, False, False]
        assert merged.lse.isnan().tolist() == [False, not math.isfinite(lse), False, False]
