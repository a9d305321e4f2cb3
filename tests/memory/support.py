"""Small pools, and where each slot's row must lie, found without ``kvlab.index``.

``deal`` hands slots out to the ranks one by one, like cards; ``assemble`` collects what the buffers
of all ranks hold and lays it out by slot, so that one comparison sees every row of every rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import (
    HostArena,
    MLATokenToKVPool,
    PageTable,
    ReplicatedKVPool,
    StatePool,
    UnifiedKVPool,
)

SIZES = (1, 2, 3, 4, 8)
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
KINDS = ("sharded", "replicated", "resolved")
NOPE, ROPE = 2, 1
C09 = DcpLayout(dcp_size=2, page_size=2, num_pages=3)  # of case c09


def ids(values: Sequence[int]) -> Tensor:
    """An int64 ``(n,)`` tensor, also of no values."""
    return torch.tensor(list(values), dtype=torch.int64)


@lru_cache(maxsize=256)
def deal(layout: DcpLayout) -> list[tuple[int, int]]:
    """(owner, row) of every slot: ``interleave`` slots to a rank in turn."""
    stored, dealt = [0] * layout.dcp_size, []
    for slot in range((layout.num_pages + 1) * layout.page_size * layout.dcp_size):
        rank = slot // layout.interleave % layout.dcp_size
        dealt.append((rank, stored[rank]))
        stored[rank] += 1
    return dealt


def make_pools(
    layout: DcpLayout,
    kind: str = "sharded",
    *,
    layers: int = 2,
    nope: int = NOPE,
    rope: int = ROPE,
    dtype: torch.dtype = torch.float32,
    host: HostArena | None = None,
    device: str = "cpu",
) -> list[MLATokenToKVPool]:
    """One small pool a rank. A unified one has its virtual pages mapped in descending order."""
    table = PageTable(layout, physical_pages=layout.num_pages)
    assert table.map_pages(list(range(layout.num_pages, 0, -1)))
    made: dict[str, Callable[..., MLATokenToKVPool]] = {
        "sharded": partial(MLATokenToKVPool, layout),
        "replicated": partial(ReplicatedKVPool, layout),
        "resolved": partial(UnifiedKVPool, table),
    }
    return [
        made[kind](
            rank,
            layers=layers,
            kv_lora_rank=nope,
            qk_rope_head_dim=rope,
            dtype=dtype,
            host=HostArena(grain=64) if host is None else host,
            device=device,
        )
        for rank in range(layout.dcp_size)
    ]


def pools_on(table: PageTable) -> list[UnifiedKVPool]:
    sizes: dict[str, Any] = {"layers": 2, "kv_lora_rank": 2, "qk_rope_head_dim": 1}
    sizes |= {"dtype": torch.float32, "host": HostArena(grain=64)}
    return [UnifiedKVPool(table, rank, **sizes) for rank in range(table.layout.dcp_size)]


def places(pool: MLATokenToKVPool) -> dict[int, int]:
    """Slot to row, for the slots whose rows this pool holds (padding page included)."""
    dealt = enumerate(deal(pool.layout))
    mine = {slot: row for slot, (rank, row) in dealt if rank == pool.rank}
    if not isinstance(pool, UnifiedKVPool):
        return mine
    page, v2p = pool.layout.page_size, pool.table.v2p.tolist()
    mapped = {slot: row for slot, row in mine.items() if v2p[row // page] >= 0}
    return {slot: v2p[row // page] * page + row % page for slot, row in mapped.items()}


def assemble(pools: Sequence[MLATokenToKVPool]) -> Tensor:
    """What all ranks hold, by slot: ``(layers, slot_end, elements)`` in the storage dtype.

    Ranks of a replicated pool must hold the same. Slots that nobody holds are zero.
    """
    first = pools[0]
    out = first.buffer.new_zeros(first.layers, first.layout.slot_end, first.buffer.shape[2])
    for pool in pools:
        where = places(pool)
        if pool.space == "replicated":
            assert torch.equal(bits(pool.buffer), bits(first.buffer))
        out[:, ids(list(where))] = pool.buffer[:, ids(list(where.values()))]
    return out


def bits(values: Tensor) -> Tensor:
    """The bytes of a tensor: NaN equals itself, and 0.0 differs from -0.0."""
    if not values.numel():  # has no stride to speak of
        return torch.empty(values.shape, dtype=torch.uint8)
    return values.contiguous().view(torch.uint8)


def rows_like(pool: MLATokenToKVPool, n: int, seed: int = 0) -> Tensor:
    """``(layers, n, elements)`` random float32 values, no two rows alike."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(pool.layers, n, pool.buffer.shape[2], generator=made) * 8


def write(pools: Sequence[MLATokenToKVPool], slots: Tensor, values: Tensor) -> None:
    """Every rank is handed the same slots and values ``(layers, n, elements)``."""
    for pool in pools:
        split = pool.kv_lora_rank
        for layer in range(pool.layers):
            pool.set_mla_kv_buffer(layer, slots, values[layer, :, :split], values[layer, :, split:])


def scramble(pools: Sequence[MLATokenToKVPool], seed: int) -> None:
    """Fill every row past the padding page with random bytes, as other requests would."""
    made = torch.Generator().manual_seed(seed)
    for pool in pools:
        if pool.space == "replicated":
            made.manual_seed(seed)
        live = pool.buffer[:, pool.layout.page_size :]
        shape = (*live.shape[:-1], live.shape[-1] * live.element_size())
        noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=made)
        live.copy_(noise.view(live.dtype))


@dataclass(frozen=True)
class Run:
    """Positions ``start ..`` of one request on ``old`` pages, and later on ``new`` ones."""

    layout: DcpLayout
    start: int
    old: list[int]
    new: list[int]

    @property
    def old_slots(self) -> WidenedSlots:
        return WidenedSlots(ids(self.old), self.start)

    @property
    def new_slots(self) -> WidenedSlots:
        return WidenedSlots(ids(self.new), self.start)


def slots_on(pages: Sequence[int], layout: DcpLayout, start: int, n: int) -> list[int]:
    """Slots of positions ``start .. start+n-1`` of a request with these allocator pages."""
    wide = layout.page_size * layout.dcp_size
    return [pages[p // wide] * wide + p % wide for p in range(start, start + n)]


@st.composite
def layouts(draw: st.DrawFn, pages: int = 6) -> DcpLayout:
    """Sizes of both parities, pages from one row on, interleave up to the page."""
    turn = draw(st.sampled_from((1, 1, 1, 2, 3)))
    page = turn * draw(st.integers(1, 3))
    return DcpLayout(draw(st.sampled_from(SIZES)), page, draw(st.integers(1, pages)), turn)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run on shuffled pages and new pages for it: other ones, the same, or some of each."""
    layout = draw(layouts())
    room = layout.num_pages * layout.page_size * layout.dcp_size
    start = draw(st.integers(0, room))
    # Lengths around c and W, and whatever else fits.
    n = min(draw(st.one_of(st.integers(0, 3), st.integers(0, room))), room - start)
    old = draw(st.permutations(range(1, layout.num_pages + 1)))
    new = draw(st.one_of(st.just(old), st.permutations(range(1, layout.num_pages + 1))))
    return Run(layout, start, slots_on(old, layout, start, n), slots_on(new, layout, start, n))


def untouched(pools: Sequence[MLATokenToKVPool]) -> Callable[[], None]:
    """Remember buffers and arenas now; calling the result asserts that nothing changed."""

    def state() -> list[Any]:
        return [
            (bits(pool.buffer).clone(), pool.host.lent_bytes, pool.host.idle_bytes)
            for pool in pools
        ]

    before = state()

    def check() -> None:
        for (was, *arena), (now, *arena_now) in zip(before, state(), strict=True):
            assert torch.equal(was, now)
            assert arena == arena_now
        for pool in pools:
            assert pool.host.audit() == []

    return check


def state_pool(slots: int = 4) -> StatePool:
    return StatePool(slots, layers=3, conv_shape=(4, 2), temporal_shape=(2, 3, 3))


def taken(pool: StatePool) -> int:
    slot = pool.alloc()
    assert slot is not None
    return slot


def fill(pool: StatePool, slot: int, mark: float) -> None:
    pool.conv[:, slot] = mark
    pool.temporal[:, slot] = mark + torch.arange(9.0).view(3, 3)


def holds(pool: StatePool, slot: int, mark: float) -> bool:
    return bool((pool.conv[:, slot] == mark).all()) and bool(
        (pool.temporal[:, slot] == mark + torch.arange(9.0).view(3, 3)).all()
    )
