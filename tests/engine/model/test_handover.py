"""Prefill at DCP 1, decode at DCP c: every row and the state arrive, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine.model import ModelPools, ShardedModel, hand_over, take_snapshot, token_plan
from kvlab.errors import LayoutError, PoolError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import Placed, layout, library_logits, model, prompt


def paged(lay: DcpLayout, n: int, seed: int) -> WidenedSlots:
    """n positions in shuffled pages."""
    order = torch.randperm(lay.num_pages, generator=torch.Generator().manual_seed(seed)) + 1
    wide = lay.widened_page_size
    return WidenedSlots((order[:, None] * wide + torch.arange(wide)).flatten()[:n])


@settings(max_examples=120)
@given(
    n=st.integers(1, 150),
    dcp_size=st.sampled_from([1, 2, 3, 4, 8]),
    sizes=st.tuples(st.sampled_from([1, 4, 16, 64]), st.sampled_from([1, 4, 16, 64])),
    interleaved=st.booleans(),
    seed=st.integers(0, 50),
)
def test_the_moves_name_each_position_once_from_its_row_to_its_owners_row(
    n: int, dcp_size: int, sizes: tuple[int, int], interleaved: bool, seed: int
) -> None:
    here, there = sizes
    source_layout = DcpLayout(1, here, 160)
    target_layout = DcpLayout(dcp_size, there, 160, there if interleaved else 1)
    source, target = paged(source_layout, n, seed), paged(target_layout, n, seed + 1)
    moved: dict[int, tuple[int, int, int]] = {}
    for rank, moves in enumerate(token_plan(source, source_layout, target, target_layout)):
        rows = zip(moves.source.ids, moves.slots, moves.target.ids, strict=True)
        for row, slot, at in rows:
            assert int(row) not in moved
            moved[int(row)] = (rank, int(slot), int(at))
    assert len(moved) == n
    for p in range(n):
        slot = int(target.ids[p])
        want = (target_layout.owner(slot), slot, target_layout.row(slot))
        assert moved[int(source.ids[p])] == want


def test_the_worked_example_of_the_module() -> None:
    source, target = torch.tensor([2, 3, 4]), torch.tensor([4, 5, 6])
    plan = token_plan(
        WidenedSlots(source), DcpLayout(1, 2, 2), WidenedSlots(target), DcpLayout(2, 2, 1)
    )
    assert [m.source.ids.tolist() for m in plan] == [[2, 4], [3]]
    assert [m.target.ids.tolist() for m in plan] == [[2, 3], [2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("dcp_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["kimi-moe", "deepseek-v3"])
def test_after_the_hand_over_the_decode_node_holds_what_the_prefill_node_held(
    kind: str, dcp_size: int, dtype: torch.dtype
) -> None:
    own = model(kind)
    prefill = ShardedModel(own, layout(1, 16, 37), requests=1, kv_dtype=dtype)
    here = Placed(prefill, [37])
    prefill.prefill(prompt(3, 37), here.slots(0), here.states[0], chunk_tokens=16)
    decode = prefill.like(layout(dcp_size, 4, 40), requests=2)
    there = Placed(decode, [37])
    hand_over(
        prefill.pools, here.slots(0), here.states[0],
        decode.pools, there.slots(0), there.states[0],
    )  # fmt: skip
    left = take_snapshot(prefill.pools, here.slots(0), here.states[0])
    arrived = take_snapshot(decode.pools, there.slots(0), there.states[0])
    left.require_equal(arrived, "request 0")
    assert bool(left.rows.any())
    assert decode.pools.audit() == []


@pytest.mark.parametrize("dcp_size", [2, 4, 8])
def test_decode_after_a_hand_over_gives_the_librarys_logits(dcp_size: int) -> None:
    tokens = prompt(4, 30)
    prefill = ShardedModel(model("kimi-moe"), layout(1, 16, 20), requests=1)
    here = Placed(prefill, [20])
    prefill.prefill(tokens[:20], here.slots(0), here.states[0])
    decode = prefill.like(layout(dcp_size, 2, 30), requests=1)
    there = Placed(decode, [20])
    hand_over(
        prefill.pools, here.slots(0), here.states[0],
        decode.pools, there.slots(0), there.states[0],
    )  # fmt: skip
    lines = []
    for token in tokens[20:].tolist():
        there.grow()
        lines.append(decode.decode([token], [there.slots(0)], there.states))
    want = library_logits("kimi-moe", tokens, 20)[20:]
    torch.testing.assert_close(torch.cat(lines), want, atol=1e-5, rtol=0)


def test_what_cannot_be_handed_over_is_refused() -> None:
    one, two = DcpLayout(1, 2, 8), DcpLayout(2, 2, 8)
    here, there = paged(one, 5, 0), paged(two, 5, 0)
    with pytest.raises(LayoutError, match="from DCP 1 to DCP c: the prefill node has dcp_size 2"):
        token_plan(there, two, here, one)
    with pytest.raises(PoolError, match="has 5 from 0, the decode node 4 from 0"):
        token_plan(here, one, WidenedSlots(there.ids[:4]), two)
    full = ShardedModel(model("kimi-dense"), one, requests=1).pools
    half = ModelPools(full.shape, two, requests=1, dtype=torch.bfloat16)
    with pytest.raises(PoolError, match=r"one row format: .* are \(.*20 \+ 8"):
        hand_over(full, here, 1, half, there, 1)
    same = ModelPools(full.shape, two, requests=1)
    with pytest.raises(PoolError, match=r"move together: the state slots are None .* and 1"):
        hand_over(full, here, None, same, there, 1)
