"""The state that the pool holds is the state of Kimi Delta Attention, from its published formula.

For each head, with a decay ``a_t`` in (0, 1) a channel, a key ``k_t`` and a query ``q_t`` of length
1, a value ``v_t`` and a rate ``b_t`` in (0, 1):

    S_t = (I - b_t k_t k_t^T) Diag(a_t) S_(t-1) + b_t k_t v_t^T          o_t = S_t^T q_t / sqrt(d)

Written out here token by token in float64, with the short convolution and the gates around it, from
the Kimi Linear report (arXiv 2510.26692). ``fla-core`` has the same recurrence, as
``naive_recurrent_kda``, but imports triton, which a machine without a GPU need not have: compared
where it is there.
"""

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kvlab.engine.model import ShardedModel
from kvlab.index import WidenedSlots
from tests.engine.model.tiny import Placed, layout, model, prompt

LINEAR = (0, 2)  # the layers of the tiny models that keep a state


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs ``(n, heads, d)`` and the last state ``(heads, d, d)`` of ``(n, heads, d)`` inputs;
    ``rate`` ``(n, heads)``."""
    n, heads, d = q.shape
    state, out = q.new_zeros(heads, d, d), []
    one = torch.eye(d, dtype=q.dtype)
    for t in range(n):
        for h in range(heads):
            key, b = k[t, h][:, None], rate[t, h]
            kept = (one - b * key @ key.T) @ torch.diag(decay[t, h]) @ state[h]
            state[h] = kept + b * key @ v[t, h][None]
        out.append(torch.einsum("hkv,hk->hv", state, q[t]) / d**0.5)
    return torch.stack(out), state.clone()


def kda(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output ``(n, hidden)``, convolution window ``(3 * heads * d, kernel)``, and state of a layer
    that has seen ``x`` ``(n, hidden)``; all float64, with nothing of the layer but its weights."""
    w = {name: p.detach().double() for name, p in layer.named_parameters()}
    d, heads, kernel = layer.head_dim, layer.num_heads, layer.conv_kernel_size
    mixed = torch.cat([x @ w[f"{name}_proj.weight"].T for name in "qkv"], dim=1)
    before = torch.cat([mixed.new_zeros(kernel, mixed.shape[1]), mixed])
    taps = w["conv1d.weight"][:, 0]  # the last one weighs the newest token
    short = sum(before[1 + i : 1 + i + len(x)] * taps[:, i] for i in range(kernel))
    assert isinstance(short, Tensor)
    q, k, v = (part.view(-1, heads, d) for part in F.silu(short).view(len(x), 3, -1).unbind(1))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    forget = x @ w["forget_gate.f_a_proj.weight"].T @ w["forget_gate.f_b_proj.weight"].T
    soft = F.softplus(forget + w["forget_gate.dt_bias"]).view(-1, heads, d)
    decay = torch.exp(-torch.exp(w["forget_gate.A_log"]).view(1, heads, 1) * soft)
    rate = torch.sigmoid(x @ w["b_proj.weight"].T)
    out, state = recurrence(q, k, v, decay, rate)
    gate = (x @ w["g_a_proj.weight"].T @ w["g_b_proj.weight"].T).view(-1, heads, d)
    root = (out.square().mean(-1, keepdim=True) + layer.layer_norm_epsilon).sqrt()
    out = out / root * w["o_norm.weight"] * torch.sigmoid(gate)
    return out.reshape(len(x), -1) @ w["o_proj.weight"].T, before[-kernel:].T, state


@pytest.mark.parametrize("chunk_tokens", [None, 7])
@pytest.mark.parametrize(("prefill", "steps"), [(1, 3), (40, 9), (70, 2)])
def test_after_prefill_and_decode_the_pool_holds_the_state_of_the_formula(
    prefill: int, steps: int, chunk_tokens: int | None
) -> None:
    own: Any = model("kimi-moe")
    seen: dict[int, list[tuple[Tensor, Tensor]]] = {i: [] for i in LINEAR}

    def note(layer: Any, given: Any, named: Any, out: Tensor) -> None:
        seen[layer.layer_idx].append((named["hidden_states"][0], out[0]))

    for i in LINEAR:
        own.model.layers[i].self_attn.register_forward_hook(note, with_kwargs=True)
    n = prefill + steps
    sharded = ShardedModel(own, layout(4, 2, n), requests=3)
    placed, tokens = Placed(sharded, [prefill]), prompt(5, n)
    slots, state = placed.slots(0), placed.states[0]
    sharded.prefill(tokens[:prefill], slots, state, chunk_tokens=chunk_tokens)
    for token in tokens[prefill:].tolist():
        placed.grow()
        sharded.decode([token], [WidenedSlots(placed.ids[0])], [state])
    states = sharded.pools.states
    assert states is not None and state is not None
    for at, i in enumerate(LINEAR):
        x = torch.cat([given for given, _ in seen[i]]).double()
        assert len(x) == n
        out, window, matrix = kda(own.model.layers[i].self_attn, x)
        near: dict[str, Any] = {"atol": 2e-5, "rtol": 0, "check_dtype": False}
        torch.testing.assert_close(torch.cat([made for _, made in seen[i]]), out, **near)
        torch.testing.assert_close(states.conv[at, state], window, **near)
        torch.testing.assert_close(states.temporal[at, state], matrix, **near)
        assert float(matrix.abs().max()) > 1e-2


def test_the_oracle_notices_a_state_of_one_token_less() -> None:
    layer: Any = model("kimi-moe").model.layers[0].self_attn
    x = torch.randn(30, 48, generator=torch.Generator().manual_seed(2)).double()
    whole, less = kda(layer, x)[2], kda(layer, x[:-1])[2]
    assert float((whole - less).abs().max()) > 1e-3


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fla", "triton", "einops")),
    reason="fla-core imports triton and einops, and one of the three is not here",
)
def test_the_recurrence_is_that_of_fla() -> None:
    naive: Any = pytest.importorskip("fla.ops.kda.naive").naive_recurrent_kda
    chance = torch.Generator().manual_seed(3)
    q, k, v, g = (torch.randn(9, 2, 8, generator=chance) for _ in range(4))
    decay, rate = torch.exp(-g.abs()), torch.rand(9, 2, generator=chance)
    out, state = recurrence(q, k, v, decay, rate)
    theirs, last = naive(
        *(part[None] for part in (q, k, v, decay.log(), rate)), output_final_state=True
    )
    torch.testing.assert_close(out, theirs[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(state, last[0], atol=1e-4, rtol=1e-4)
