"""Backup and restore on a CPU: what decides the time of upstream's loop, and what ours adds.

What is equal for both: the rows lie on pages in random order, the host holds a queue of retracted
requests, and giving memory back is not timed. What differs is the point: ours lands in a block of
the arena that an earlier backup has used, upstream's chunks wherever the C library puts them. That
decides its time, so upstream is timed three times: into fresh memory (free memory was given back to
the system before, so every page faults, as in the first retractions of a process), its results kept
in a queue as a server keeps them, and dropped at once; and ours once more into a new arena. The
memory copy moves the same number of bytes, in one piece, into memory that was written before. How
both grow with layers, tokens and ranks, on any device, is in ``requests``.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.bench import upstream
from kvlab.lab.bench.clock import Contender, take_turns
from kvlab.lab.bench.place import Place, give_memory_back
from kvlab.lab.bench.rows import Aim, Facts, LeftOut, Row, compare
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool
from kvlab.ops import gather_rows, scatter_rows, summed_rows

PART = "copy"
PAGE_SIZE = 64
BLOCK_ROWS = summed_rows(PAGE_SIZE)
BACKUP_AIM = Aim(5.0, "at least 5x")
RESTORE_AIM = Aim(3.5, "at least 3.5x")
MEMORY_AIM = Aim(0.85, "at least 0.85")

OURS, UNSUMMED, NEW_ARENA = "backup", "backup without checksum", "backup, new arena"
FRESH, MEMORY = "upstream, into fresh memory", "memory copy"
QUEUED, DROPPED = "upstream, kept in a queue", "upstream, dropped at once"
RESTORE, UNVERIFIED, BACK = "restore", "restore without verifying", "upstream restore"


@dataclass(frozen=True, slots=True)
class CopyCase:
    """One rank of ``dcp_size`` that holds ``rows`` rows a layer of each request; bf16 rows."""

    dcp_size: int
    layers: int
    rows: int
    repetitions: int
    queue: int = 4
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    aimed: bool = False

    @property
    def name(self) -> str:
        """For instance "27 layers x 16384 rows x 576 bf16, c=8"."""
        width = self.kv_lora_rank + self.qk_rope_head_dim
        return f"{self.layers} layers x {self.rows} rows x {width} bf16, c={self.dcp_size}"

    @property
    def request_bytes(self) -> int:
        """Bytes of one request on this rank."""
        return self.layers * self.rows * (self.kv_lora_rank + self.qk_rope_head_dim) * 2

    @property
    def needed_bytes(self) -> int:
        """The pool of two requests, both queues with one more in the making, and three buffers."""
        return (2 + 2 * (self.queue + 1) + 3) * self.request_bytes


FULL = (
    CopyCase(1, layers=27, rows=16_384, repetitions=15, aimed=True),
    CopyCase(8, layers=27, rows=16_384, repetitions=15, aimed=True),
)
QUICK = (
    CopyCase(1, layers=9, rows=2048, repetitions=9),
    CopyCase(8, layers=9, rows=2048, repetitions=9),
)


class CopyBench:
    """The pool, two runs of slots, and the host memory of one case."""

    def __init__(self, case: CopyCase) -> None:
        self.case = case
        self.rank = min(3, case.dcp_size - 1)
        pages = -(-case.rows // PAGE_SIZE)
        layout = DcpLayout(case.dcp_size, PAGE_SIZE, 2 * pages)
        self.pool = MLATokenToKVPool(
            layout,
            self.rank,
            layers=case.layers,
            kv_lora_rank=case.kv_lora_rank,
            qk_rope_head_dim=case.qk_rope_head_dim,
        )
        chance = torch.Generator().manual_seed(0)
        self.pool.buffer.view(torch.int16).random_(generator=chance)
        order = (torch.randperm(2 * pages, generator=chance) + 1).view(2, pages, 1)
        inside = torch.arange(layout.widened_page_size)
        slots = (order * layout.widened_page_size + inside).view(2, -1)
        #: Slots of two requests: every backup is of one, every restore into the other.
        self.ids = slots[:, : case.rows * case.dcp_size].contiguous()
        self.arena = self.pool.host
        self.target = torch.zeros(case.request_bytes, dtype=torch.uint8)
        self.block = torch.zeros(case.request_bytes, dtype=torch.uint8)

    def back_up(self, run: int) -> KvBackup:
        """Ours."""
        return self.pool.get_cpu_copy(WidenedSlots(self.ids[run]))

    def back_up_upstream(self, run: int) -> upstream.Chunks:
        """Upstream's loop, rows taken by the unchecked stride."""
        return upstream.back_up(self.pool.buffer, self.ids[run], self.case.dcp_size, self.rank)

    def back_up_unsummed(self, run: int) -> Tensor:
        """Ours without the checksum: localize and gather ``(layers, rows, elements)``."""
        rows = self.pool.resolve(WidenedSlots(self.ids[run])).ids
        shape = (self.case.layers, self.case.rows, self.pool.buffer.shape[2])
        out = self.block.view(self.pool.buffer.dtype).view(shape)
        flat, size = out.view(-1, shape[2]), PAGE_SIZE
        gather_rows(self.pool.buffer, rows, flat, block_rows=BLOCK_ROWS, page_size=size)
        return out

    def restore(self, backup: KvBackup, run: int) -> None:
        """Ours: checks everything, then writes."""
        self.pool.load_cpu_copy(backup, WidenedSlots(self.ids[run]))

    def restore_unverified(self, backup: KvBackup, run: int) -> None:
        """The scatter alone; the checksum is not looked at."""
        rows = self.pool.resolve(WidenedSlots(self.ids[run])).ids
        flat, size = backup.kv.flatten(0, 1), PAGE_SIZE
        scatter_rows(self.pool.buffer, rows, flat, block_rows=BLOCK_ROWS, page_size=size)

    def restore_upstream(self, copies: upstream.Chunks, run: int) -> None:
        """Upstream's loop, rows taken by the unchecked stride."""
        c = self.case.dcp_size
        upstream.restore(self.pool.buffer, copies, self.ids[run], c, self.rank)

    def copy_memory(self) -> None:
        """As many bytes as one request, from the front of the pool's buffer."""
        source = self.pool.buffer.view(-1).view(torch.uint8)[: self.case.request_bytes]
        self.target.copy_(source)

    def backups(self) -> list[Contender]:
        """Everything that is compared with a backup."""
        ours: deque[KvBackup] = deque()
        theirs: deque[object] = deque()

        def prepare(arena: HostArena | None) -> Callable[[int], Callable[[], object]]:
            def made(i: int) -> Callable[[], object]:
                self.pool.host = HostArena() if arena is None else arena
                return lambda: self.back_up(i % 2)

            return made

        def keep(result: object) -> None:
            assert isinstance(result, KvBackup)
            ours.append(result)
            if len(ours) > self.case.queue:
                ours.popleft().discard()

        def fresh(i: int) -> Callable[[], object]:
            give_memory_back()
            return lambda: self.back_up_upstream(i % 2)

        def queue(result: object) -> None:
            theirs.append(result)
            if len(theirs) > self.case.queue:
                theirs.popleft()

        return [
            Contender(OURS, prepare(self.arena), keep),
            Contender(QUEUED, lambda i: lambda: self.back_up_upstream(i % 2), queue),
            Contender(MEMORY, lambda _: self.copy_memory),
            Contender(UNSUMMED, lambda i: lambda: self.back_up_unsummed(i % 2)),
            Contender(DROPPED, lambda i: lambda: self.back_up_upstream(i % 2)),
            Contender(NEW_ARENA, prepare(None)),
            Contender(FRESH, fresh),
        ]

    def restores(self) -> list[Contender]:
        """Everything that is compared with a restore; each has a backup made for it, untimed."""

        def verified(i: int) -> Callable[[], object]:
            backup = self.back_up(i % 2)
            return lambda: self.restore(backup, (i + 1) % 2)

        def unverified(i: int) -> Callable[[], object]:
            backup = self.back_up(i % 2)

            def write() -> KvBackup:
                self.restore_unverified(backup, (i + 1) % 2)
                return backup

            return write

        def discard(result: object) -> None:
            assert isinstance(result, KvBackup)
            result.discard()

        def back(i: int) -> Callable[[], object]:
            copies = self.back_up_upstream(i % 2)
            return lambda: self.restore_upstream(copies, (i + 1) % 2)

        self.pool.host = self.arena
        return [
            Contender(RESTORE, verified),
            Contender(BACK, back),
            Contender(MEMORY, lambda _: self.copy_memory),
            Contender(UNVERIFIED, unverified, discard),
        ]


def rows_of(case: CopyCase) -> list[Row]:
    """Time one case. Errors: StudyError when two contenders copy different rows."""
    bench = CopyBench(case)
    require_equal(bench)
    facts = {
        op: Facts(
            op,
            "torch",
            layers=case.layers,
            tokens=case.rows * case.dcp_size,
            dcp_size=case.dcp_size,
            bytes=case.request_bytes,
        )
        for op in ("backup", "restore")
    }
    timing = take_turns(bench.backups(), case.repetitions, case.queue + 1)
    aim, near = (BACKUP_AIM, MEMORY_AIM) if case.aimed else (None, None)
    found = [
        compare(PART, case.name, timing, ours, baseline, held, "", facts["backup"], MEMORY)
        for ours, baseline, held in (
            (OURS, FRESH, aim),
            (OURS, QUEUED, aim),
            (OURS, DROPPED, aim),
            (OURS, MEMORY, near),
            (UNSUMMED, MEMORY, None),
            (NEW_ARENA, QUEUED, None),
        )
    ]
    timing = take_turns(bench.restores(), case.repetitions, 2)
    aim = RESTORE_AIM if case.aimed else None
    return found + [
        compare(PART, case.name, timing, ours, baseline, held, "", facts["restore"], MEMORY)
        for ours, baseline, held in (
            (RESTORE, BACK, aim),
            (RESTORE, MEMORY, None),
            (UNVERIFIED, BACK, None),
        )
    ]


def measure(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case, on a CPU; nothing elsewhere."""
    for case in (QUICK if quick else FULL) if place.on_cpu else ():
        why = place.lacks(case.needed_bytes, 0)
        yield rows_of(case) if why is None else LeftOut(PART, case.name, why)


def require_equal(bench: CopyBench) -> None:
    """Raise StudyError unless all ways to back up and to restore give the same rows."""
    pool, before = bench.pool, bench.pool.buffer.clone()
    backup, copies = bench.back_up(0), bench.back_up_upstream(0)
    joined = torch.stack([torch.cat(chunks) for chunks in copies])
    same = _same(backup.kv, joined) and _same(backup.kv, bench.back_up_unsummed(0))
    ways: tuple[Callable[[], None], ...] = (
        lambda: bench.restore_unverified(backup, 1),
        lambda: bench.restore_upstream(copies, 1),
        lambda: bench.restore(backup, 1),
    )
    after: list[Tensor] = []
    for way in ways:
        pool.buffer.copy_(before)
        way()
        after.append(pool.buffer.clone())
    alike = _same(after[0], after[1]) and _same(after[0], after[2])
    if not (same and alike) or _same(pool.buffer, before):
        raise StudyError(
            f"what is timed must be right: ours and upstream's loop copy different rows "
            f"({bench.case.name}); do not trust this benchmark"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal bytes; random bf16 holds NaN, which equals nothing."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))
