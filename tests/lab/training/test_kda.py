"""The KDA of training says what the recurrence says, and what the library's function says."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

from kvlab.lab.training.kda import CHUNK, chunk_kda

HEADS, KEY, VALUE = 2, 4, 3
AROUND = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65)


def inputs(seed: int, length: int, decay: float = 1.0, requests: int = 2) -> dict[str, Tensor]:
    """Random arguments; ``g`` lies in [-decay, 0], and ``key`` is wider than a unit vector."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(requests, *shape, generator=draw)

    return {
        "query": normal(length, HEADS, KEY),
        "key": normal(length, HEADS, KEY),
        "value": normal(length, HEADS, VALUE),
        "g": -decay * torch.rand(requests, length, HEADS, KEY, generator=draw),
        "beta": torch.rand(requests, length, HEADS, generator=draw),
        "initial_state": normal(HEADS, KEY, VALUE),
    }


def recurrence(given_: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The definition, a token at a time, in float64: outputs and the last state."""
    q, k, v, g, b, state = (x.double() for x in given_.values())
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    outs = []
    for t in range(q.shape[1]):
        key, value = k[:, t, :, :, None], v[:, t, :, None, :]
        state = g[:, t, :, :, None].exp() * state
        state = state + b[:, t, :, None, None] * key * (value - (key * state).sum(2, keepdim=True))
        outs.append((q[:, t, :, :, None] * state).sum(2) / KEY**0.5)
    return torch.stack(outs, dim=1), state


def ours(given_: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    out, state = chunk_kda(**given_, output_final_state=True, use_qk_l2norm_in_kernel=True)
    assert state is not None
    return out, state


def librarys(given_: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    function: Any = chunk_kimi_delta_attention
    out, state = function(**given_, output_final_state=True, use_qk_l2norm_in_kernel=True)
    return out, state


def gradients(function: Any, given_: dict[str, Tensor], double: bool = False) -> list[Tensor]:
    """Of a sum in which each output and each element of the state has a weight of its own."""
    leaves = {name: (x.double() if double else x).requires_grad_() for name, x in given_.items()}
    out, state = function(leaves)
    ramp = torch.linspace(-1, 1, out[0].numel()).view(out[0].shape)
    ((out * ramp).sum() + state.square().sum()).backward()
    return [x.grad for x in leaves.values() if x.grad is not None]


@pytest.mark.parametrize("length", AROUND)
def test_outputs_and_state_are_those_of_the_library_at_every_length_around_a_chunk(
    length: int,
) -> None:
    given_ = inputs(length, length)
    for mine, theirs in zip(ours(given_), librarys(given_), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 16, 17, 50])
def test_gradients_are_those_of_the_library_and_of_the_recurrence(length: int) -> None:
    mine = gradients(ours, inputs(length, length))
    assert len(mine) == 6
    for other in (
        gradients(librarys, inputs(length, length)),
        gradients(recurrence, inputs(length, length), double=True),
    ):
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-4)


@settings(max_examples=60)
@given(
    st.integers(0, 2**31),
    st.integers(1, 3 * CHUNK + 1),
    st.sampled_from([0.0, 1e-4, 1.0, 8.0, 80.0, 1e4]),
)
def test_it_is_the_recurrence_for_decays_from_none_to_all(
    seed: int, length: int, decay: float
) -> None:
    given_ = inputs(seed, length, decay, requests=1)
    # Sums of g lose absolute precision as they grow: 16 * 80 has an eps of 1e-4, 16 * 1e4 of 2e-2;
    # what decays so fast is 0 in both unless g happens to be small.
    near = {80.0: 1e-3, 1e4: 5e-2}.get(decay, 5e-5)
    for mine, exact in zip(ours(given_), recurrence(given_), strict=True):
        assert torch.isfinite(mine).all()
        torch.testing.assert_close(mine, exact.float(), rtol=near, atol=near)


@pytest.mark.parametrize("decay", [0.0, 1e4])
def test_gradients_stay_finite_where_nothing_and_where_everything_decays(decay: float) -> None:
    assert all(torch.isfinite(x).all() for x in gradients(ours, inputs(5, 40, decay)))


def test_a_sequence_in_two_parts_that_hand_the_state_over_is_the_whole_sequence() -> None:
    given_ = inputs(3, 45)
    whole, last = ours(given_)
    first = {k: v if k == "initial_state" else v[:, :19] for k, v in given_.items()}
    out_1, state = ours(first)
    second = {k: state if k == "initial_state" else v[:, 19:] for k, v in given_.items()}
    out_2, end = ours(second)
    torch.testing.assert_close(torch.cat([out_1, out_2], dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(end, last, rtol=1e-5, atol=1e-5)


def test_no_state_is_a_state_of_zeros_and_is_handed_out_only_when_asked_for() -> None:
    given_ = inputs(4, 20)
    zeros = given_ | {"initial_state": torch.zeros_like(given_["initial_state"])}
    none: dict[str, Any] = given_ | {"initial_state": None}
    assert torch.equal(ours(none)[0], ours(zeros)[0])
    assert chunk_kda(**none)[1] is None


def test_outputs_have_the_type_of_the_query_and_the_state_is_float32() -> None:
    halves = {name: x.bfloat16() for name, x in inputs(6, 20).items()}
    out, state = ours(halves)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)


def test_queries_and_keys_are_normalized_only_when_asked() -> None:
    given_ = inputs(7, 20)
    arguments: dict[str, Any] = given_
    plain, _ = chunk_kda(**arguments)
    theirs: Any = chunk_kimi_delta_attention(**arguments)
    # Keys longer than 1 make the recurrence explode, so only the first tokens are compared.
    torch.testing.assert_close(plain[:, :4], theirs[0][:, :4], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(plain[:, :4], ours(given_)[0][:, :4], atol=1e-2)
