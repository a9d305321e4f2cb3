"""Kimi Delta Attention for training on a CPU: the library's recurrence with a faster backward.

Per head, with key width d, a state S ``(d, v)``, decay ``a_t = exp(g_t)`` a channel and strength
``b_t``:

    S_t = (I - b_t k_t k_t') diag(a_t) S_{t-1} + b_t k_t v_t'        o_t = S_t' q_t / sqrt(d)

Inside a chunk of C tokens the products telescope: with G the running sum of g and

    L_ij = b_i sum_d k_i k_j exp(G_i - G_j)   (j < i)

the corrected values are ``(I + L)^-1 b (v - (k exp G)' S_0)``. L is strictly lower triangular, so
its inverse is a product of log2(C) factors. The library's fallback walks the rows of chunks of 64
one by one and indexes in place, which costs most of a training step; this one is about four times
as fast. It takes the library's place while a model trains, and nowhere else.

Source: Kimi Linear (arXiv 2510.26692), section 3; checked against the library's own function.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.kimi_linear import modeling_kimi_linear as library

CHUNK = 16


@contextmanager
def training_kda() -> Iterator[None]:
    """Inside the block every Kimi Linear of this process calls ``chunk_kda``."""
    own = library.chunk_kimi_delta_attention
    library.chunk_kimi_delta_attention = chunk_kda
    try:
        yield
    finally:
        library.chunk_kimi_delta_attention = own


def chunk_kda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Outputs ``(B, T, heads, v)`` in the type of ``query``, and the last state when asked.

    ``query``, ``key`` and ``g`` are ``(B, T, heads, d)``, ``value`` ``(B, T, heads, v)``, ``beta``
    ``(B, T, heads)``, ``initial_state`` float32 ``(B, heads, d, v)``; g is the log of the decay.
    """
    kind, length = query.dtype, query.shape[1]
    q, k, v, g = (_chunks(x) for x in (query, key, value, g))
    b = _chunks(beta[..., None])
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    q = q * query.shape[-1] ** -0.5
    total = g.cumsum(dim=-2)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    gap = (total.unsqueeze(-2) - total.unsqueeze(-3)).masked_fill(~lower[..., None], -torch.inf)
    decayed = k.unsqueeze(-3) * gap.exp()
    links = (decayed * (k * b).unsqueeze(-2)).sum(-1).tril(-1)
    seen = (decayed * q.unsqueeze(-2)).sum(-1)
    inverse = _inverse(links)
    fresh = inverse @ (v * b)
    faded = total.exp()
    taken = inverse @ (k * b * faded)
    asked = q * faded
    last = total[..., -1:, :]
    kept = k * (last - total).exp()
    shape = (len(q), q.shape[2], q.shape[-1], v.shape[-1])
    state = q.new_zeros(shape) if initial_state is None else initial_state.to(q)
    outs = []
    for a, s, f, t, r, z in zip(
        asked.unbind(1), seen.unbind(1), fresh.unbind(1), taken.unbind(1), kept.unbind(1),
        last.exp().unbind(1), strict=True,
    ):  # fmt: skip
        new = f - t @ state
        outs.append(a @ state + s @ new)
        state = state * z.transpose(-1, -2) + r.transpose(-1, -2) @ new
    out = torch.stack(outs, dim=1).transpose(2, 3).flatten(1, 2)[:, :length]
    return out.to(kind), state if output_final_state else None


def _chunks(x: Tensor) -> Tensor:
    """``(B, T, heads, d)`` as float32 ``(B, chunks, heads, CHUNK, d)``, zeros behind the end."""
    batch, length, heads, width = x.shape
    x = functional.pad(x.float(), (0, 0, 0, 0, 0, -length % CHUNK))
    return x.view(batch, -1, CHUNK, heads, width).transpose(2, 3)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _inverse(links: Tensor) -> Tensor:
    """``(I + links)^-1`` of a strictly lower triangular matrix: (I + M)(I + M^2)(I + M^4)... with
    M = -links, which ends because M^CHUNK is zero."""
    one = torch.eye(CHUNK, dtype=links.dtype, device=links.device)
    power, product, reach = -links, one - links, 2
    while reach < CHUNK:
        power = power @ power
        product = product @ (one + power)
        reach *= 2
    return product
