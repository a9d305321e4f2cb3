"""Backup and restore by size, beside upstream's loop and one copy of as many bytes, on any device.

Nothing is warm: the pool holds as many requests as the last-level cache cannot, and each contender
is at another of them. Host memory goes round in as many blocks: the arena's for ours and for the
copies, and what upstream's loop allocated for its own. A restore takes the oldest backup and writes
it to slots on other pages. Giving memory back is not timed.

Where upstream's chunks land decides its time on a CPU, so there the aimed sizes time it in three
ways: kept in a queue of four as a server keeps them, dropped at once, and into fresh memory, which
faults on every page as in the first retractions of a process. They also time ours without checksum.

Worked example: 16k tokens of 27 layers on c=8 are 64 MB of one rank; a backup in 5 ms beside a copy
in 4 ms is a share of 0.8.

Source: SGLang ``MLATokenToKVPool.get_cpu_copy`` and ``load_cpu_copy``, after the fix.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.bench.clock import Contender, Effort, Place, give_memory_back, take_turns
from kvlab.lab.bench.ops import count_text
from kvlab.lab.bench.rows import Aim, Facts, Row, compare, require_same
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool
from kvlab.ops import gather_rows, scatter_rows

PART = "copy"
PAGE_SIZE = 64
CHUNK = 8192  # ids of one chunk (upstream ``cpu_offloading_chunk_size``)
OURS, UPSTREAM, OUT = "backup", "upstream's loop", "one copy out"
RESTORE, UPSTREAM_BACK, BACK = "restore", "upstream's loop back", "one copy back"
DROPPED, FRESH = "upstream's loop, dropped at once", "upstream's loop, into fresh memory"
UNSUMMED, UNVERIFIED = "backup without checksum", "restore without checksum"
ABOVE_UPSTREAM = Aim(5.0, "at least 5x")
NEAR_COPY = Aim(0.85, "at least 0.85")
#: On a CPU: (ours, baseline) of the aimed sizes.
CPU_AIMS = {
    (OURS, UPSTREAM): ABOVE_UPSTREAM,
    (OURS, DROPPED): ABOVE_UPSTREAM,
    (OURS, FRESH): ABOVE_UPSTREAM,
    (OURS, OUT): Aim(0.75, "at least 0.75"),
    (UNSUMMED, OUT): Aim(0.9, "at least 0.9"),
    (RESTORE, UPSTREAM_BACK): Aim(3.5, "at least 3.5x"),
    (RESTORE, BACK): Aim(0.7, "at least 0.7"),
    (UNVERIFIED, BACK): Aim(0.85, "at least 0.85"),
}
QUEUE = 4
_BESIDE = 256 * 2**20  # device memory beside the pool: two halves of staging, row ids and sums
_gather = partial(gather_rows, block_rows=4096, page_size=PAGE_SIZE)
_scatter = partial(scatter_rows, block_rows=4096, page_size=PAGE_SIZE)
_EFFORT = Effort(1.5)


@dataclass(frozen=True, slots=True)
class CopyCase:
    """A request of ``tokens`` on ``dcp_size`` ranks, of which one copies its rows; bf16 rows.
    ``aimed``: the CPU aims are of this size."""

    layers: int
    tokens: int
    dcp_size: int
    effort: Effort = _EFFORT
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    aimed: bool = False

    @property
    def name(self) -> str:
        """For instance "27 layers x 16k tokens x 576 bf16, c=8"."""
        width = self.kv_lora_rank + self.qk_rope_head_dim
        tokens = count_text(self.tokens)
        return f"{self.layers} layers x {tokens} tokens x {width} bf16, c={self.dcp_size}"

    @property
    def rank(self) -> int:
        """The rank that copies, not the first where there is a choice."""
        return min(3, self.dcp_size - 1)

    @property
    def request_bytes(self) -> int:
        """Bytes of the request on this rank."""
        rows = len(range(self.rank, self.tokens, self.dcp_size))
        return self.layers * rows * (self.kv_lora_rank + self.qk_rope_head_dim) * 2

    def requests(self, place: Place) -> int:
        """How many requests the pool holds."""
        return place.sets(self.request_bytes, least=1)

    def detailed(self, place: Place) -> bool:
        """Whether upstream's loop is timed in three ways, and ours without its checksum."""
        return self.aimed and place.on_cpu

    def kept(self, place: Place) -> int:
        """How many backups of each contender are kept."""
        return QUEUE if self.detailed(place) else self.requests(place)

    def needs(self, place: Place) -> tuple[int, int]:
        """(host, device) bytes: blocks of three contenders out there, the pool and one block here.

        Blocks of pinned memory are powers of two.
        """
        held, size = self.requests(place) * self.request_bytes, self.request_bytes
        if place.on_cpu:
            return (3 * self.kept(place) + 1) * size, held
        return 3 * self.kept(place) * (1 << (size - 1).bit_length()), held + _BESIDE


FULL = tuple(
    CopyCase(layers, tokens * 2**10, c, aimed=(layers, tokens, c) in {(27, 16, 1), (27, 64, 4)})
    for layers in (27, 61)
    for tokens in (1, 4, 16, 64)
    for c in (1, 2, 4, 8)
)
QUICK = tuple(CopyCase(27, 2**10, c, Effort(0.3, most=9)) for c in (1, 8))


@dataclass(frozen=True, slots=True)
class Way:
    """A way out to the host and back: ``out(i)`` copies request ``i`` and gives what ``back(kept,
    i)`` restores; ``let_go`` takes what is no longer needed, and after ``back`` what that gives."""

    name: str
    back_name: str
    out: Callable[[int], Any]
    back: Callable[[Any, int], Any]
    let_go: Callable[[Any], object]


class CopyBench:
    """The pool, the slots of its requests on two sets of pages, and the ways to copy them."""

    def __init__(self, case: CopyCase, place: Place) -> None:
        self.case, self.place = case, place
        self.count, self.kept = case.requests(place), case.kept(place)
        pages = -(-case.tokens // (case.dcp_size * PAGE_SIZE))
        layout = DcpLayout(case.dcp_size, PAGE_SIZE, self.count * pages)
        self.pool = MLATokenToKVPool(
            layout,
            case.rank,
            layers=case.layers,
            kv_lora_rank=case.kv_lora_rank,
            qk_rope_head_dim=case.qk_rope_head_dim,
            device=place.device,
            host=HostArena(pinned=not place.on_cpu),
        )
        #: The pool's buffer in one piece, as the widest integers: a fourth of the numbers.
        self.flat = self.pool.buffer.view(-1).view(torch.int64)
        self.flat.random_(generator=torch.Generator(place.device).manual_seed(0))
        here, width = torch.Generator().manual_seed(0), layout.widened_page_size
        orders = [torch.randperm(layout.num_pages, generator=here) + 1 for _ in range(2)]
        #: Slots of each request, in two orders of the same pages: backed up from one, restored to
        #: the other. Rows of other requests are overwritten, and nobody reads them again.
        self.ids, self.others = (
            [
                run[: case.tokens].contiguous().to(place.device)
                for run in (order[:, None] * width + torch.arange(width)).view(self.count, -1)
            ]
            for order in orders
        )

    def ways(self) -> list[Way]:
        """Ours, upstream's loop, and one copy; where it is detailed, ours without its checksum."""
        give = self.pool.host.give
        ways = [
            Way(OURS, RESTORE, self.back_up, self.restore, _discard),
            Way(UPSTREAM, UPSTREAM_BACK, self.back_up_upstream, self.restore_upstream, _drop),
            Way(OUT, BACK, self.copy_out, self.copy_back, give),
        ]
        if self.case.detailed(self.place):
            ways.append(Way(UNSUMMED, UNVERIFIED, self.gather, self.scatter, give))
        return ways

    def back_up(self, i: int) -> KvBackup:
        """Ours."""
        return self.pool.get_cpu_copy(WidenedSlots(self.ids[i % self.count]))

    def restore(self, backup: KvBackup, i: int) -> None:
        """Ours."""
        self.pool.load_cpu_copy(backup, WidenedSlots(self.others[i % self.count]))

    def back_up_upstream(self, i: int) -> list[list[Tensor]]:
        """Upstream's loop: every layer by chunks, each into memory of its own."""
        rows = self._stride(self.ids[i % self.count])
        return [
            [layer[part].to("cpu", non_blocking=True) for part in torch.split(rows, CHUNK)]
            for layer in self.pool.buffer
        ]

    def restore_upstream(self, copies: list[list[Tensor]], i: int) -> None:
        """Upstream's loop back."""
        rows = self._stride(self.others[i % self.count])
        for layer, chunks in zip(self.pool.buffer, copies, strict=True):
            for part, chunk in zip(torch.split(rows, CHUNK), chunks, strict=True):
                layer[part] = chunk.to(self.place.device, non_blocking=True)

    def copy_out(self, i: int) -> Tensor:
        """The floor of a backup: as many bytes of the buffer in one piece; gives the block."""
        block = self._block()
        block[: self.case.request_bytes].copy_(self._piece(i), non_blocking=True)
        return block

    def copy_back(self, block: Tensor, i: int) -> Tensor:
        """The floor of a restore; gives the block."""
        self._piece(i).copy_(block[: self.case.request_bytes], non_blocking=True)
        return block

    def gather(self, i: int) -> Tensor:
        """Ours without the checksum: localize and gather; gives the block."""
        block, rows = self._block(), self.pool.resolve(WidenedSlots(self.ids[i % self.count])).ids
        _gather(self.pool.buffer, rows, self._rows(block))
        return block

    def scatter(self, block: Tensor, i: int) -> Tensor:
        """Ours without the checksum: localize and scatter; gives the block."""
        rows = self.pool.resolve(WidenedSlots(self.others[i % self.count])).ids
        _scatter(self.pool.buffer, rows, self._rows(block))
        return block

    def backups(self) -> list[Contender]:
        """Each way out keeps what it made for some rounds."""
        made = [
            Contender(way.name, self._out(way, at), self._queue(way.let_go))
            for at, way in enumerate(self.ways())
        ]
        if self.case.detailed(self.place):

            def fresh(i: int) -> Callable[[], object]:
                give_memory_back()
                return lambda: self.back_up_upstream(i)

            made.append(Contender(DROPPED, lambda i: lambda: self.back_up_upstream(i)))
            made.append(Contender(FRESH, fresh))
        return made

    def restores(self) -> list[Contender]:
        """Each way back takes the oldest of some copies that were made for it, untimed."""
        return [
            Contender(way.back_name, self._back(way, at), partial(_end, way))
            for at, way in enumerate(self.ways())
        ]

    def _out(self, way: Way, at: int) -> Callable[[int], Callable[[], object]]:
        apart = at * self.count // 3  # the contenders of a round are at different requests
        return lambda i: lambda: way.out(i + apart)

    def _back(self, way: Way, at: int) -> Callable[[int], Callable[[], object]]:
        queue: deque[object] = deque()
        apart = at * self.count // 3

        def prepare(i: int) -> Callable[[], object]:
            while len(queue) < self.kept:
                queue.append(way.out(i + len(queue)))
            oldest = queue.popleft()
            return lambda: way.back(oldest, i + apart)

        return prepare

    def _queue(self, let_go: Callable[[Any], object]) -> Callable[[object], None]:
        """Keeps results, and lets the oldest one go once there are ``kept``."""
        queue: deque[object] = deque()

        def keep(result: object) -> None:
            queue.append(result)
            if len(queue) >= self.kept:
                let_go(queue.popleft())

        return keep

    def _block(self) -> Tensor:
        taken = self.pool.host.take(self.case.request_bytes)
        assert taken is not None  # the arena has no bound
        return taken

    def _stride(self, ids: Tensor) -> Tensor:
        """Rows by the stride that checks nothing."""
        return ids[self.case.rank :: self.case.dcp_size] // self.case.dcp_size

    def _piece(self, i: int) -> Tensor:
        """As many bytes of the buffer as request ``i`` has, in one piece."""
        size = self.case.request_bytes
        return self.flat.view(torch.uint8)[i % self.count * size :][:size]

    def _rows(self, block: Tensor) -> Tensor:
        """A block as the rows of a request, all layers one after the other."""
        found = block[: self.case.request_bytes].view(self.pool.buffer.dtype)
        return found.view(-1, self.pool.buffer.shape[2])


def rows_of(case: CopyCase, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when ours and upstream's loop copy different rows."""
    bench = CopyBench(case, place)
    require_equal(bench)
    rows: list[Row] = []
    detailed = case.detailed(place)
    for op, contenders, names in (
        ("backup", bench.backups, (OURS, UPSTREAM, OUT)),
        ("restore", bench.restores, (RESTORE, UPSTREAM_BACK, BACK)),
    ):
        timing = take_turns(contenders(), case.effort, place.wait)
        facts = Facts(
            op,
            place.backend,
            layers=case.layers,
            tokens=case.tokens,
            dcp_size=case.dcp_size,
            bytes=case.request_bytes,
        )
        ours, theirs, copy = names
        pairs: Sequence[tuple[str, str, Aim | None]] = [(ours, theirs, None), (ours, copy, None)]
        if detailed:
            pairs = [(*pair, aim) for pair, aim in CPU_AIMS.items() if pair[0] in timing.seconds]
        elif not place.on_cpu:
            pairs = [(ours, theirs, ABOVE_UPSTREAM), (ours, copy, NEAR_COPY)]
        rows += compare(PART, case.name, timing, pairs, facts, copy)
    return rows


def measure(quick: bool, place: Place) -> Iterator[list[Row] | str]:
    """The rows of each case; those that the memory here cannot hold are left out."""
    for case in QUICK if quick else FULL:
        why = place.lacks(*case.needs(place))
        yield rows_of(case, place) if why is None else f"left out: {PART}, {case.name}: {why}"


def require_equal(bench: CopyBench) -> None:
    """Raise StudyError unless all ways out give the same rows, and all ways back put them there.

    Rows are compared in place by their checksum, so that no second pool is needed: every bit of the
    buffer is turned, one request is restored, and its new slots are backed up again.
    """
    kept = {way.name: way.out(0) for way in bench.ways() if way.name != OUT}
    bench.place.wait()
    rows = {OURS: [_bytes(kept[OURS].kv)]}
    rows[UPSTREAM] = [_bytes(torch.cat([torch.cat(chunks) for chunks in kept[UPSTREAM]]))]
    if UNSUMMED in kept:
        rows[UNSUMMED] = [kept[UNSUMMED][: bench.case.request_bytes]]
    require_same(bench.case.name, rows)
    sums = {OURS: [_checksum(kept[OURS])]}
    for way in bench.ways():
        if way.name in kept:
            bench.flat.bitwise_not_()
            _end(way, way.back(kept[way.name], 0))
            bench.place.wait()
            again = bench.pool.get_cpu_copy(WidenedSlots(bench.others[0]))
            sums[way.back_name] = [_checksum(again)]
            again.discard()
    require_same(bench.case.name, sums)


def _bytes(rows: Tensor) -> Tensor:
    """Random bf16 holds NaN, which equals nothing."""
    return rows.reshape(-1).view(torch.uint8)


def _checksum(backup: KvBackup) -> Tensor:
    return torch.frombuffer(bytearray(backup.checksum, "ascii"), dtype=torch.uint8)


def _discard(backup: KvBackup) -> None:
    backup.discard()


def _drop(result: object) -> None:
    """Let it go."""


def _end(way: Way, kept: object) -> None:
    """After a way back: ours and upstream's give nothing."""
    if kept is not None:
        way.let_go(kept)
