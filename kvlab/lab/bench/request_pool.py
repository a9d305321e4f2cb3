"""What a backup and a restore are timed on: a pool of several requests, and memory out there.

Nothing is warm. The pool holds as many requests as the last-level cache cannot, and each contender
is at another of them. Host memory goes round in the same number of blocks: the arena's for ours and
for the copies, and what upstream's loop allocated for its own, which it keeps as long. A restore
takes the oldest backup, and writes it to slots on other pages. Giving memory back is not timed.

Worked example: 1,024 tokens of 27 layers on c=8 are 128 rows a layer, 4 MB of one rank; with a
cache of 32 MiB the pool holds 17 such requests. Of 64k tokens at c=1 it holds one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.bench import upstream
from kvlab.lab.bench.clock import Contender, Effort
from kvlab.lab.bench.localize import count_text
from kvlab.lab.bench.place import Place
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool

PAGE_SIZE = 64
OURS, UPSTREAM, OUT = "backup", "upstream's loop", "one copy out"
RESTORE, UPSTREAM_BACK, BACK = "restore", "upstream's loop back", "one copy back"
#: Device memory beside the pool: two halves of a staging buffer, row ids and sums.
_BESIDE = 256 * 2**20
_EFFORT = Effort(1.5, least=3, most=15, warmup=2)


@dataclass(frozen=True, slots=True)
class RequestCase:
    """A request of ``tokens`` on ``dcp_size`` ranks, of which one copies its rows; bf16 rows."""

    layers: int
    tokens: int
    dcp_size: int
    effort: Effort = _EFFORT
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64

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
    def rows(self) -> int:
        """Rows of the rank in one layer."""
        return len(range(self.rank, self.tokens, self.dcp_size))

    @property
    def request_bytes(self) -> int:
        """Bytes of the request on this rank."""
        return self.layers * self.rows * (self.kv_lora_rank + self.qk_rope_head_dim) * 2

    def requests(self, place: Place) -> int:
        """How many requests the pool holds."""
        return place.sets(self.request_bytes, least=1)

    def needs(self, place: Place) -> tuple[int, int]:
        """(host, device) bytes: three blocks a request out there, the pool and one block here.

        Blocks of pinned memory are powers of two.
        """
        held = self.requests(place) * self.request_bytes
        if place.on_cpu:
            return 3 * held, held
        block = 1 << (self.request_bytes - 1).bit_length()
        return 3 * self.requests(place) * block, held + _BESIDE


class RequestBench:
    """The pool, the slots of its requests on two sets of pages, and the blocks out there."""

    def __init__(self, case: RequestCase, place: Place) -> None:
        self.case, self.place, self.count = case, place, case.requests(place)
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
        chance = torch.Generator(place.device).manual_seed(0)
        self.flat.random_(generator=chance)
        inside = torch.arange(layout.widened_page_size)
        here = torch.Generator().manual_seed(0)
        orders = [torch.randperm(layout.num_pages, generator=here) + 1 for _ in range(2)]
        #: Slots of each request, in two orders of the same pages: backed up from one, restored to
        #: the other. Rows of other requests are overwritten, and nobody reads them again.
        self.ids, self.others = (
            [
                run[: case.tokens].contiguous().to(place.device)
                for run in (order[:, None] * layout.widened_page_size + inside).view(self.count, -1)
            ]
            for order in orders
        )

    @property
    def flat(self) -> Tensor:
        """The pool's buffer in one piece, as the widest integers: a fourth of the numbers."""
        return self.pool.buffer.view(-1).view(torch.int64)

    def back_up(self, i: int) -> KvBackup:
        """Ours, of request ``i``."""
        return self.pool.get_cpu_copy(WidenedSlots(self.ids[i % self.count]))

    def restore(self, backup: KvBackup, i: int) -> None:
        """Ours."""
        self.pool.load_cpu_copy(backup, WidenedSlots(self.others[i % self.count]))

    def back_up_upstream(self, i: int) -> upstream.Chunks:
        """Upstream's loop, rows taken by the unchecked stride."""
        ids, case = self.ids[i % self.count], self.case
        return upstream.back_up(self.pool.buffer, ids, case.dcp_size, case.rank)

    def restore_upstream(self, copies: upstream.Chunks, i: int) -> None:
        """Upstream's loop back."""
        ids, case = self.others[i % self.count], self.case
        upstream.restore(self.pool.buffer, copies, ids, case.dcp_size, case.rank)

    def part(self, i: int) -> Tensor:
        """As many bytes of the buffer as request ``i`` has, in one piece."""
        size = self.case.request_bytes
        return self.flat.view(torch.uint8)[i % self.count * size :][:size]

    def copy_out(self, block: Tensor, i: int) -> Tensor:
        """The floor of a backup; gives the block."""
        block[: self.case.request_bytes].copy_(self.part(i), non_blocking=True)
        return block

    def copy_back(self, block: Tensor, i: int) -> Tensor:
        """The floor of a restore; gives the block."""
        self.part(i).copy_(block[: self.case.request_bytes], non_blocking=True)
        return block

    def block(self) -> Tensor:
        """Host memory of one request, from the arena."""
        taken = self.pool.host.take(self.case.request_bytes)
        assert taken is not None  # the arena has no bound
        return taken

    def backups(self) -> list[Contender]:
        """Ours, upstream's loop, and one copy; each keeps what it made for ``count`` rounds."""
        ours: deque[KvBackup] = deque()
        theirs: deque[object] = deque()
        blocks: deque[Tensor] = deque()

        def keep(result: object) -> None:
            assert isinstance(result, KvBackup)
            ours.append(result)
            if len(ours) >= self.count:
                ours.popleft().discard()

        def queue(result: object) -> None:
            theirs.append(result)
            if len(theirs) >= self.count:
                theirs.popleft()

        def give(result: object) -> None:
            assert isinstance(result, Tensor)
            blocks.append(result)
            if len(blocks) >= self.count:
                self.pool.host.give(blocks.popleft())

        def copied(i: int) -> Callable[[], object]:
            block = self.block()
            return lambda: self.copy_out(block, i + self._apart(2))

        return [
            Contender(OURS, lambda i: lambda: self.back_up(i), keep),
            Contender(UPSTREAM, lambda i: lambda: self.back_up_upstream(i + self._apart(1)), queue),
            Contender(OUT, copied, give),
        ]

    def restores(self) -> list[Contender]:
        """The way back; each takes the oldest of ``count`` that were made for it, untimed."""
        ours: deque[KvBackup] = deque()
        theirs: deque[upstream.Chunks] = deque()
        blocks: deque[Tensor] = deque()

        def verified(i: int) -> Callable[[], object]:
            while len(ours) < self.count:
                ours.append(self.back_up(i + len(ours)))
            backup = ours.popleft()
            return lambda: self.restore(backup, i)

        def back(i: int) -> Callable[[], object]:
            while len(theirs) < self.count:
                theirs.append(self.back_up_upstream(i + len(theirs)))
            copies = theirs.popleft()
            return lambda: self.restore_upstream(copies, i + self._apart(1))

        def copied(i: int) -> Callable[[], object]:
            while len(blocks) < self.count:
                blocks.append(self.copy_out(self.block(), i + len(blocks)))
            block = blocks.popleft()
            return lambda: self.copy_back(block, i + self._apart(2))

        def give(result: object) -> None:
            assert isinstance(result, Tensor)
            self.pool.host.give(result)

        return [
            Contender(RESTORE, verified),
            Contender(UPSTREAM_BACK, back),
            Contender(BACK, copied, give),
        ]

    def _apart(self, contender: int) -> int:
        """How far the requests of two contenders of one round are apart."""
        return contender * self.count // 3
