"""A model over the pools of c ranks says what the library says with a cache of its own."""

import pytest
import torch
from torch import Tensor

from kvlab.engine.model import Form, ShardedModel
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import (
    Placed,
    layout,
    library_logits,
    library_logits_in_chunks,
    model,
    prompt,
)

KINDS = ["kimi-dense", "kimi-moe", "deepseek-v3"]
# Logits of these models have a standard deviation of 1.0. Measured: 6.0e-6 at most.
FLOAT32 = 1e-5
PREFILL, STEPS = 24, 20
TOKENS = prompt(1, PREFILL + STEPS)


def sharded_logits(sharded: ShardedModel, tokens: Tensor, prefill: int) -> Tensor:
    """One request: logits of each position, prefill and then one token a call: ``(n, V)``."""
    placed = Placed(sharded, [prefill])
    lines = [sharded.prefill(tokens[:prefill], placed.slots(0), placed.states[0], keep=0)]
    for token in tokens[prefill:].tolist():
        placed.grow()
        lines.append(sharded.decode([token], [placed.slots(0)], placed.states))
    return torch.cat(lines)


def run(kind: str, dcp_size: int, page_size: int, form: Form = "absorbed") -> Tensor:
    lay = layout(dcp_size, page_size, len(TOKENS))
    return sharded_logits(ShardedModel(model(kind), lay, requests=1, form=form), TOKENS, PREFILL)


@pytest.mark.parametrize(("dcp_size", "page_size"), [(1, 16), (2, 1), (3, 4), (4, 2), (8, 64)])
@pytest.mark.parametrize("kind", KINDS)
def test_prefill_and_decode_steps_give_the_librarys_logits(
    kind: str, dcp_size: int, page_size: int
) -> None:
    want = library_logits(kind, TOKENS, PREFILL)
    torch.testing.assert_close(run(kind, dcp_size, page_size), want, atol=FLOAT32, rtol=0)


@pytest.mark.parametrize("dcp_size", [1, 3, 8])
@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_the_form_that_expands_keys_gives_them_too(kind: str, dcp_size: int) -> None:
    want = library_logits(kind, TOKENS, PREFILL)
    torch.testing.assert_close(run(kind, dcp_size, 4, "expanded"), want, atol=FLOAT32, rtol=0)


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_deepseek_v2_runs_through_the_same_adapter(form: Form) -> None:
    want = library_logits("deepseek-v2", TOKENS, PREFILL)
    torch.testing.assert_close(run("deepseek-v2", 4, 2, form), want, atol=FLOAT32, rtol=0)


@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_the_oracle_notices_when_one_rank_is_left_out(kind: str) -> None:
    sharded = ShardedModel(model(kind), layout(8, 1, 40), requests=1)
    placed = Placed(sharded, [33])
    sharded.prefill(TOKENS[:33], placed.slots(0), placed.states[0])
    sharded.pools.ranks[5].buffer.zero_()
    placed.grow()
    got = sharded.decode([int(TOKENS[33])], [placed.slots(0)], placed.states)
    want = library_logits(kind, TOKENS[:34], 33)[-1:]
    assert float((got - want).abs().max()) > 1000 * FLOAT32


@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 60])
def test_a_prompt_in_chunks_gives_the_librarys_logits_in_the_same_chunks(
    kind: str, chunk_tokens: int
) -> None:
    tokens = prompt(2, 60)
    sharded = ShardedModel(model(kind), layout(3, 4, 60), requests=1)
    placed = Placed(sharded, [60])
    got = sharded.prefill(
        tokens, placed.slots(0), placed.states[0], chunk_tokens=chunk_tokens, keep=0
    )
    want = library_logits_in_chunks(kind, tokens, chunk_tokens)
    torch.testing.assert_close(got, want, atol=FLOAT32, rtol=0)
    # Other chunks are other sums in a KDA layer: the library differs from itself by 1e-5 there.
    torch.testing.assert_close(got, library_logits(kind, tokens, 60), atol=3e-5, rtol=0)


def boundary_lens(dcp_size: int, page_size: int) -> list[int]:
    """Lengths at, before and after a page of one rank and a widened page; the shortest is 1."""
    wide = dcp_size * page_size
    around = {1, page_size, page_size + 1, wide, wide + 1, page_size - 1, wide - 1, 2 * wide}
    return sorted(n for n in around if n > 0)


@pytest.mark.parametrize(
    ("dcp_size", "page_size"), [(1, 16), (2, 1), (2, 16), (3, 4), (4, 8), (8, 2)]
)
def test_a_ragged_batch_in_any_order_gives_each_request_its_own_logits(
    dcp_size: int, page_size: int
) -> None:
    kind = "kimi-moe" if dcp_size % 2 else "deepseek-v3"
    lens = boundary_lens(dcp_size, page_size)
    lay = layout(dcp_size, page_size, max(lens) + 2, len(lens))
    sharded = ShardedModel(model(kind), lay, requests=len(lens))
    placed = Placed(sharded, lens)
    streams = [prompt(10 + i, n + 2) for i, n in enumerate(lens)]
    for i, n in enumerate(lens):
        sharded.prefill(streams[i][:n], placed.slots(i), placed.states[i], chunk_tokens=256)
    got = torch.empty(2, len(lens), 61)
    for step in range(2):
        placed.grow()
        order = torch.randperm(len(lens), generator=torch.Generator().manual_seed(step)).tolist()
        got[step, order] = sharded.decode(
            [int(streams[i][lens[i] + step]) for i in order],
            [placed.slots(i) for i in order],
            [placed.states[i] for i in order],
        )
    assert sharded.pools.audit() == []
    for i, n in enumerate(lens):
        want = library_logits(kind, streams[i], n + 2)[-2:]
        torch.testing.assert_close(got[:, i], want, atol=FLOAT32, rtol=0)


@pytest.mark.parametrize("dcp_size", [1, 4])
@pytest.mark.parametrize("form", ["absorbed", "expanded"])
@pytest.mark.parametrize("kind", ["kimi-dense", "deepseek-v3"])
def test_in_bfloat16_it_stays_within_the_librarys_own_rounding(
    kind: str, form: Form, dcp_size: int
) -> None:
    """The floor is measured here: what bfloat16 does to the library itself, mean of |delta
    logprob| over positions and tokens, 0.01 to 0.06 for these models."""
    half = torch.bfloat16
    exact = torch.log_softmax(library_logits(kind, TOKENS, PREFILL), -1)
    own = torch.log_softmax(library_logits(kind, TOKENS, PREFILL, half).float(), -1)
    floor = (own - exact).abs()
    assert 0.005 < float(floor.mean()) < 0.08
    lay = layout(dcp_size, 4, len(TOKENS))
    sharded = ShardedModel(model(kind, half), lay, requests=1, form=form)
    got = torch.log_softmax(sharded_logits(sharded, TOKENS, PREFILL).float(), -1)
    assert float((got - exact).abs().mean()) < 1.5 * float(floor.mean())
    assert float((got - own).abs().mean()) < 1.5 * float(floor.mean())
    if kind == "kimi-dense":
        assert float((got - own).abs().max()) < float(floor.max())


def test_rows_of_a_page_that_was_another_requests_do_not_leak() -> None:
    sharded = ShardedModel(model("kimi-moe"), layout(2, 2, 40), requests=1)
    placed = Placed(sharded, [20])
    sharded.pools.fill(WidenedSlots(placed.ids[0]), float("nan"))
    got = sharded.prefill(TOKENS[:20], placed.slots(0), placed.states[0])
    torch.testing.assert_close(
        got, library_logits("kimi-moe", TOKENS[:20], 20)[-1:], atol=FLOAT32, rtol=0
    )


@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_fp8_rows_are_near_the_exact_logits_and_not_equal(form: Form) -> None:
    tokens = prompt(8, 40)
    sharded = ShardedModel(
        model("deepseek-v3"), layout(4, 2, 40), requests=1, kv_dtype=torch.float8_e4m3fn, form=form
    )
    placed = Placed(sharded, [40])
    got = sharded.prefill(tokens, placed.slots(0), None, keep=0)
    apart = (got - library_logits("deepseek-v3", tokens, 40)).abs()
    assert 1e-4 < float(apart.mean()) < 0.1
    assert bool((sharded.pools.ranks[3].scales[:, 2:] > 0).any())


def test_a_prefill_may_start_where_another_ended() -> None:
    tokens = prompt(6, 30)
    sharded = ShardedModel(model("kimi-moe"), layout(4, 2, 30), requests=1)
    placed = Placed(sharded, [30])
    slots, state = placed.slots(0), placed.states[0]
    sharded.prefill(tokens[:11], WidenedSlots(slots.ids[:11]), state)
    got = sharded.prefill(tokens, slots, state, start=11, keep=0)
    torch.testing.assert_close(got, library_logits("kimi-moe", tokens, 30)[11:], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "form"),
    [("kimi-moe", "absorbed"), ("deepseek-v3", "absorbed"), ("deepseek-v3", "expanded")],
)
@pytest.mark.parametrize(("dcp_size", "page_size", "turn"), [(2, 3, 3), (3, 4, 2), (7, 6, 3)])
def test_ranks_that_take_turns_of_more_than_one_position_give_the_librarys_logits(
    dcp_size: int, page_size: int, turn: int, kind: str, form: Form
) -> None:
    """Lengths that end inside a turn, at its end and behind it; NaN in all rows that nobody has."""
    lens = [1, turn - 1, turn, turn + 1, dcp_size * turn, dcp_size * turn + 1]
    lay = DcpLayout(dcp_size, page_size, 60, turn)
    sharded = ShardedModel(model(kind), lay, requests=len(lens), form=form)
    for pool in sharded.pools.ranks:
        pool.buffer.fill_(torch.nan)
    placed = Placed(sharded, lens)
    streams = [prompt(50 + i, n + 1) for i, n in enumerate(lens)]
    for i, n in enumerate(lens):
        got = sharded.prefill(streams[i][:n], placed.slots(i), placed.states[i], keep=0)
        want = library_logits(kind, streams[i], n)
        torch.testing.assert_close(got, want[:n], atol=FLOAT32, rtol=0)
    placed.grow()
    tokens = [int(s[-1]) for s in streams]
    got = sharded.decode(tokens, [placed.slots(i) for i in range(len(lens))], placed.states)
    for i, n in enumerate(lens):
        want = library_logits(kind, streams[i], n)[n]
        torch.testing.assert_close(got[i], want, atol=FLOAT32, rtol=0)
