"""The running batch as sums and queues that stay true while it only decodes.

The clock counts forwards. A running request gains one token a forward, so ``clock - born`` is what
it has generated, with ``born`` fixed while it runs. All that changes from forward to forward then
follows from numbers that are written only when a request joins or leaves:

    tokens held           sum of prompts + size * clock - sum of born
    pages that open now   the requests whose ``phase`` is ``clock % W``
    who is retracted      order of ``-born``, which does not change
    who finishes          ``born + output - 1``, known on joining

Worked example, W = 4: a request of 6 prompt tokens joins at clock 10 with g = 1. It is born at 9;
at clock 12 it has g = 3 and 8 tokens of KV, so a page opens: phase (9 + 1 - 6) % 4 = 0 = 12 % 4.
"""

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kvlab.engine.event_sums import Largest, PageClock, Ramps
from kvlab.engine.policy import NodeConfig, victim_key
from kvlab.engine.workload import Request


@dataclass(slots=True, eq=False)
class Member:
    """A request in the system. ``joined`` is None unless it runs; ``born`` counts only then."""

    rid: int
    prompt: int
    output: int
    asked: int
    generated: int = 0
    joined: int | None = None
    born: int = 0

    @classmethod
    def of(cls, request: Request, config: NodeConfig) -> "Member":
        """The state of a request that has just come."""
        asked = config.asked(request.output_tokens)
        return cls(request.rid, request.prompt_tokens, request.output_tokens, asked)

    @property
    def kv_tokens(self) -> int:
        """KV tokens of one that ran, but does not run now: all but the token sampled last."""
        return self.prompt + self.generated - 1

    @property
    def still_asked(self) -> int:
        """Output tokens that a client still waits for (0 if it asked for fewer than it gets)."""
        return max(0, self.asked - self.generated)


class Batch:
    """The requests that decode together. Every change costs O(log n), every sum O(1)."""

    def __init__(self, config: NodeConfig) -> None:
        self.size = 0
        self.asked = 0
        self.pages = PageClock(config.layout.widened_page_size)
        self._width = config.layout.widened_page_size
        self._clip = config.clip_max_new_tokens
        self._joins = 0
        self._prompts = 0
        self._born = 0
        self._ends: dict[int, dict[int, Member]] = {}
        self._end_clocks: list[int] = []
        self._victims: list[tuple[tuple[int, int, int], Member]] = []
        # Each admission rule reads one of the two sums.
        by_ratio = config.admission == "new_token_ratio"
        self._largest = None if by_ratio else Largest()
        self._outstanding = (Ramps(), Ramps()) if by_ratio else None

    def join(self, member: Member, clock: int) -> None:
        """Enter the batch with ``member.generated`` tokens sampled."""
        self._joins += 1
        member.joined = self._joins
        member.born = born = clock - member.generated
        end = born + member.output - 1
        if end not in self._ends:
            self._ends[end] = {}
            heappush(self._end_clocks, end)
        self._ends[end][member.joined] = member
        # At one clock, the order of -born is the order of what was generated.
        heappush(self._victims, (victim_key(-born, member.prompt, member.joined), member))
        self.pages.add((born + 1 - member.prompt) % self._width)
        self._add(member, 1)
        if self._largest is not None:
            self._largest.add(member.prompt + min(member.asked, self._clip))
        if self._outstanding is not None:
            # min(asked - g, clip), clamped at 0, is the difference of two ramps.
            self._outstanding[0].add(born + member.asked)
            self._outstanding[1].add(born + member.asked - self._clip)

    def leave(self, member: Member, clock: int) -> None:
        """Leave the batch; ``member.generated`` is written down."""
        assert member.joined is not None
        del self._ends[member.born + member.output - 1][member.joined]
        member.generated = clock - member.born
        member.joined = None
        self.pages.remove((member.born + 1 - member.prompt) % self._width)
        self._add(member, -1)
        if self._largest is not None:
            self._largest.remove(member.prompt + min(member.asked, self._clip))
        if self._outstanding is not None:
            self._outstanding[0].remove(member.born + member.asked)
            self._outstanding[1].remove(member.born + member.asked - self._clip)
        if len(self._victims) > 4 * self.size + 64:
            # Without this a pool that never retracts would keep every request it served.
            self._victims = [(key, kept) for key, kept in self._victims if kept.joined == -key[2]]
            heapify(self._victims)

    def _add(self, member: Member, by: int) -> None:
        self.size += by
        self.asked += by * member.asked
        self._prompts += by * member.prompt
        self._born += by * member.born

    def generated(self, clock: int) -> int:
        """Tokens that the batch has generated."""
        return self.size * clock - self._born

    def tokens(self, clock: int) -> int:
        """Prompt and generated tokens of the batch."""
        return self._prompts + self.generated(clock)

    def largest(self) -> int | None:
        """``max(prompt + min(asked, clip))``; None of an empty batch. Reserved rule only."""
        return None if self._largest is None else self._largest.value()

    def settle(self, clock: int) -> None:
        """Prepare ``outstanding`` for clocks from ``clock`` on."""
        for ramps in self._outstanding or ():
            ramps.settle(clock)

    def outstanding(self, clock: int) -> int:
        """The sum of ``min(asked - generated, clip)``. Ratio rule only; see `bend`."""
        if self._outstanding is None:
            return 0
        return self._outstanding[0].value(clock) - self._outstanding[1].value(clock)

    def bend(self, clock: int) -> int:
        """The last clock up to which `outstanding` is straight since `settle`, or ``clock``."""
        bends = [ramps.next_end() for ramps in self._outstanding or ()]
        return min([clock, *(bend for bend in bends if bend is not None)])

    def next_end(self) -> int:
        """The forward in which the next request finishes; the batch is not empty."""
        while not self._ends[self._end_clocks[0]]:
            del self._ends[heappop(self._end_clocks)]
        return self._end_clocks[0]

    def ending(self, clock: int) -> Collection[Member]:
        """Those that finish in the forward at ``clock``, in the order in which they joined."""
        return list(self._ends.get(clock, {}).values())

    def victim(self) -> Member:
        """Who is retracted next; the batch is not empty."""
        while self._victims[0][1].joined != -self._victims[0][0][2]:
            heappop(self._victims)
        return self._victims[0][1]
