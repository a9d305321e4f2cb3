"""Backup and restore by size, beside upstream's loop and one copy of as many bytes.

Nothing is warm: the pool holds as many requests as the last-level cache cannot, each contender is
at another of them, and host memory goes round. A restore takes the oldest backup and writes it to
slots on other pages. On a CPU the aimed sizes also time upstream's loop whose chunks are dropped at
once, and ours without checksum. Source: SGLang ``MLATokenToKVPool.get_cpu_copy`` and
``load_cpu_copy``, after the fix.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.bench.clock import Contender, Effort, Place, take_turns
from kvlab.lab.bench.ops import PAGE_SIZE, RANK, ROPE, count_text
from kvlab.lab.bench.table import Case, Pair, Row, compare, require_same
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool
from kvlab.ops import gather_rows, scatter_rows

PART = "copy"
CHUNK = 8192  # ids of one chunk (upstream ``cpu_offloading_chunk_size``)
QUEUE = 4  # backups of each contender that are kept where it is timed in detail
OURS, UPSTREAM, OUT = "backup", "upstream's loop", "one copy out"
RESTORE, UPSTREAM_BACK, BACK = "restore", "upstream's loop back", "one copy back"
DROPPED = "upstream's loop, dropped at once"
UNSUMMED, UNVERIFIED = "backup without checksum", "restore without checksum"
ABOVE_UPSTREAM, NEAR_COPY = 5.0, 0.85
#: On a CPU, of the aimed sizes.
CPU_AIMS: tuple[Pair, ...] = (
    (OURS, UPSTREAM, ABOVE_UPSTREAM),
    (OURS, DROPPED, ABOVE_UPSTREAM),
    (OURS, OUT, 0.75),
    (UNSUMMED, OUT, 0.9),
    (RESTORE, UPSTREAM_BACK, 3.5),
    (RESTORE, BACK, 0.7),
    (UNVERIFIED, BACK, 0.85),
)
_EFFORT = Effort(1.5)
_BESIDE = 256 * 2**20  # device memory beside the pool: two halves of staging, row ids and sums
_COPY: dict[str, Any] = {"block_rows": 4096, "page_size": PAGE_SIZE}


@dataclass(frozen=True, slots=True)
class Sizes:
    """A request of ``tokens`` on ``dcp_size`` ranks, of which one copies its rows."""

    layers: int
    tokens: int
    dcp_size: int
    kv_lora_rank: int = RANK
    qk_rope_head_dim: int = ROPE

    @property
    def rank(self) -> int:
        """The rank that copies, not the first where there is a choice."""
        return min(3, self.dcp_size - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the request on this rank."""
        rows = len(range(self.rank, self.tokens, self.dcp_size))
        return self.layers * rows * (self.kv_lora_rank + self.qk_rope_head_dim) * 2


SIZES = [
    Sizes(layers, tokens * 2**10, c)
    for layers in (27, 61)
    for tokens in (1, 4, 16, 64)
    for c in (1, 2, 4, 8)
]
AIMED = (Sizes(27, 2**14, 1), Sizes(27, 2**16, 4))


def cases(quick: bool) -> list[Case]:
    """Every size; the small ones when ``quick``."""
    if quick:
        return [copy_case(Sizes(27, 2**10, c), Effort(0.3, most=9)) for c in (1, 8)]
    return [copy_case(sizes, aimed=sizes in AIMED) for sizes in SIZES]


def copy_case(sizes: Sizes, effort: Effort = _EFFORT, aimed: bool = False) -> Case:
    """One request out and back. ``aimed``: the CPU aims are of this size."""
    width = sizes.kv_lora_rank + sizes.qk_rope_head_dim
    tokens = count_text(sizes.tokens)
    name = f"{sizes.layers} layers x {tokens} tokens x {width} bf16, c={sizes.dcp_size}"

    def rows(place: Place) -> list[Row]:
        bench = CopyBench(sizes, place, aimed and place.on_cpu)
        bench.require_equal(name)
        facts = {"backend": place.backend, "layers": sizes.layers, "tokens": sizes.tokens}
        facts |= {"dcp_size": sizes.dcp_size, "bytes": sizes.nbytes}
        found: list[Row] = []
        for op, contenders, ours, theirs, copy in (
            ("backup", bench.backups, OURS, UPSTREAM, OUT),
            ("restore", bench.restores, RESTORE, UPSTREAM_BACK, BACK),
        ):
            timing = take_turns(contenders(), effort, place.wait)
            above, near = (None, None) if place.on_cpu else (ABOVE_UPSTREAM, NEAR_COPY)
            pairs: list[Pair] = [(ours, theirs, above), (ours, copy, near)]
            if bench.detailed:
                pairs = [pair for pair in CPU_AIMS if pair[0] in timing.seconds]
            found += compare(PART, name, timing, pairs, {"op": op, **facts}, copy)
        return found

    def needs(place: Place) -> tuple[int, int]:
        # Blocks of three contenders out there, the pool and one block here; pinned memory comes
        # in powers of two.
        requests, size = place.sets(sizes.nbytes, least=1), sizes.nbytes
        if place.on_cpu:
            return (3 * (QUEUE if aimed else requests) + 1) * size, requests * size
        return 3 * requests * (1 << (size - 1).bit_length()), requests * size + _BESIDE

    return Case(PART, name, rows, needs)


@dataclass(frozen=True, slots=True)
class Way:
    """Out to the host and back: ``back`` restores what ``out`` of a request gave."""

    name: str
    back_name: str
    out: Callable[[int], Any]
    back: Callable[[Any, int], object]
    let_go: Callable[[Any], object] = lambda kept: None


class CopyBench:
    """The pool, the slots of its requests on two sets of pages, and the ways to copy them."""

    def __init__(self, sizes: Sizes, place: Place, detailed: bool) -> None:
        self.sizes, self.place, self.detailed = sizes, place, detailed
        self.count = place.sets(sizes.nbytes, least=1)
        self.kept = QUEUE if detailed else self.count
        pages = -(-sizes.tokens // (sizes.dcp_size * PAGE_SIZE))
        layout = DcpLayout(sizes.dcp_size, PAGE_SIZE, self.count * pages)
        self.pool = MLATokenToKVPool(
            layout,
            sizes.rank,
            layers=sizes.layers,
            kv_lora_rank=sizes.kv_lora_rank,
            qk_rope_head_dim=sizes.qk_rope_head_dim,
            device=place.device,
            host=HostArena(pinned=not place.on_cpu),
        )
        #: The pool's buffer in one piece, as the widest integers: a fourth of the numbers.
        self.flat = self.pool.buffer.view(-1).view(torch.int64)
        self.flat.random_(generator=torch.Generator(place.device).manual_seed(0))
        chance, width = torch.Generator().manual_seed(0), layout.widened_page_size

        def runs() -> list[Tensor]:
            order = torch.randperm(layout.num_pages, generator=chance) + 1
            slots = (order[:, None] * width + torch.arange(width)).view(self.count, -1)
            return [run[: sizes.tokens].contiguous().to(place.device) for run in slots]

        #: Slots of each request, backed up from one order of the pages and restored to another.
        #: Rows of other requests are overwritten, and nobody reads them again.
        self.ids, self.others = runs(), runs()
        give = self.pool.host.give
        self.ways = [
            Way(OURS, RESTORE, self.back_up, self.restore, KvBackup.discard),
            Way(UPSTREAM, UPSTREAM_BACK, self.back_up_upstream, self.restore_upstream),
            Way(OUT, BACK, self.copy_out, self.copy_back, give),
        ]
        if detailed:
            self.ways.append(Way(UNSUMMED, UNVERIFIED, self.gather, self.scatter, give))

    def back_up(self, i: int) -> KvBackup:
        """Ours."""
        return self.pool.get_cpu_copy(WidenedSlots(self.ids[i % self.count]))

    def restore(self, backup: KvBackup, i: int) -> None:
        """Ours."""
        self.pool.load_cpu_copy(backup, WidenedSlots(self.others[i % self.count]))

    def back_up_upstream(self, i: int) -> list[list[Tensor]]:
        """Upstream's loop: every layer by chunks, each into memory of its own."""
        parts = torch.split(self._stride(self.ids[i % self.count]), CHUNK)
        return [
            [layer[part].to("cpu", non_blocking=True) for part in parts]
            for layer in self.pool.buffer
        ]

    def restore_upstream(self, copies: list[list[Tensor]], i: int) -> None:
        """Upstream's loop back."""
        parts = torch.split(self._stride(self.others[i % self.count]), CHUNK)
        for layer, chunks in zip(self.pool.buffer, copies, strict=True):
            for part, chunk in zip(parts, chunks, strict=True):
                layer[part] = chunk.to(self.place.device, non_blocking=True)

    def copy_out(self, i: int) -> Tensor:
        """The floor of a backup: as many bytes of the buffer in one piece; gives the block."""
        block = self._block()
        block[: self.sizes.nbytes].copy_(self._piece(i), non_blocking=True)
        return block

    def copy_back(self, block: Tensor, i: int) -> None:
        """The floor of a restore."""
        self._piece(i).copy_(block[: self.sizes.nbytes], non_blocking=True)

    def gather(self, i: int) -> Tensor:
        """Ours without the checksum: localize and gather; gives the block."""
        block, slots = self._block(), WidenedSlots(self.ids[i % self.count])
        gather_rows(self.pool.buffer, self.pool.resolve(slots).ids, self._rows(block), **_COPY)
        return block

    def scatter(self, block: Tensor, i: int) -> None:
        """Ours without the checksum: localize and scatter."""
        rows = self.pool.resolve(WidenedSlots(self.others[i % self.count])).ids
        scatter_rows(self.pool.buffer, rows, self._rows(block), **_COPY)

    def backups(self) -> list[Contender]:
        """Each way out keeps what it made for some rounds."""

        def contender(way: Way, apart: int) -> Contender:
            queue: deque[object] = deque()

            def keep(result: object) -> None:
                queue.append(result)
                if len(queue) >= self.kept:
                    way.let_go(queue.popleft())

            return Contender(way.name, lambda i: lambda: way.out(i + apart), keep)

        made = [contender(way, self._apart(at)) for at, way in enumerate(self.ways)]
        if self.detailed:
            made.append(Contender(DROPPED, lambda i: lambda: self.back_up_upstream(i)))
        return made

    def restores(self) -> list[Contender]:
        """Each way back takes the oldest of some copies that were made for it, untimed."""

        def contender(way: Way, apart: int) -> Contender:
            queue: deque[object] = deque()

            def prepare(i: int) -> Callable[[], object]:
                while len(queue) < self.kept:
                    queue.append(way.out(i + len(queue)))
                return lambda: way.back(queue[0], i + apart)

            def finish(_: object) -> None:
                spent = queue.popleft()
                if way.name != OURS:  # a restore has consumed its backup
                    way.let_go(spent)

            return Contender(way.back_name, prepare, finish)

        return [contender(way, self._apart(at)) for at, way in enumerate(self.ways)]

    def require_equal(self, name: str) -> None:
        """Raise StudyError unless all ways give the same rows out, and put them back.

        Back, sums are compared, so that no second pool is needed: every bit of the buffer is
        turned, one request is restored, and its new slots are backed up again.
        """
        ways = [way for way in self.ways if way.name != OUT]
        kept = {way.name: way.out(0) for way in ways}
        self.place.wait()
        rows = {OURS: [_bytes(kept[OURS].kv)]}
        rows[UPSTREAM] = [_bytes(torch.cat([torch.cat(chunks) for chunks in kept[UPSTREAM]]))]
        if UNSUMMED in kept:
            rows[UNSUMMED] = [kept[UNSUMMED][: self.sizes.nbytes]]
        require_same(name, rows)
        sums = {OURS: [kept[OURS].sums.clone()]}
        for way in ways:
            self.flat.bitwise_not_()
            way.back(kept[way.name], 0)
            if way.name != OURS:
                way.let_go(kept[way.name])
            self.place.wait()
            again = self.pool.get_cpu_copy(WidenedSlots(self.others[0]))
            sums[way.back_name] = [again.sums.clone()]
            again.discard()
        require_same(name, sums)

    def _apart(self, at: int) -> int:
        """The contenders of a round are at different requests."""
        return at * self.count // 3

    def _block(self) -> Tensor:
        taken = self.pool.host.take(self.sizes.nbytes)
        assert taken is not None  # the arena has no bound
        return taken

    def _stride(self, ids: Tensor) -> Tensor:
        """Rows by the stride that checks nothing."""
        return ids[self.sizes.rank :: self.sizes.dcp_size] // self.sizes.dcp_size

    def _piece(self, i: int) -> Tensor:
        """As many bytes of the buffer as request ``i`` has, in one piece."""
        size = self.sizes.nbytes
        return self.flat.view(torch.uint8)[i % self.count * size :][:size]

    def _rows(self, block: Tensor) -> Tensor:
        """A block as the rows of a request, all layers one after the other."""
        found = block[: self.sizes.nbytes].view(self.pool.buffer.dtype)
        return found.view(-1, self.pool.buffer.shape[2])


def _bytes(rows: Tensor) -> Tensor:
    """Random bf16 holds NaN, which equals nothing."""
    return rows.reshape(-1).view(torch.uint8)
