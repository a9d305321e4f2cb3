"""The crash study done by hand, with dictionaries: what every rank's rows hold at the end.

Nothing of kvlab is used: slot ``v`` lies on rank ``v % c`` in row ``v // c``, and pages are given
out from the front of a list to which freed pages return.
"""

from dataclasses import dataclass, field

Mark = tuple[int, int] | None  # (request, position), or nothing that a request wrote


@dataclass
class HandNode:
    """``requests`` requests of ``tokens`` positions in a pool of ``pages`` pages."""

    dcp_size: int
    page_size: int
    pages: int
    requests: int
    tokens: int
    free: list[int] = field(default_factory=list)
    slots: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[tuple[int, int], Mark] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(1, self.pages + 1))
        for rid in range(self.requests):
            self.admit(rid)

    def take(self, rid: int) -> None:
        width = self.page_size * self.dcp_size
        need = -(-self.tokens // width)
        taken, self.free = self.free[:need], self.free[need:]
        self.slots[rid] = [page * width + i for page in taken for i in range(width)][: self.tokens]

    def admit(self, rid: int) -> None:
        self.take(rid)
        for position, slot in enumerate(self.slots[rid]):
            self.rows[self.place(slot)] = (rid, position)

    def place(self, slot: int) -> tuple[int, int]:
        return slot % self.dcp_size, slot // self.dcp_size

    def give_up(self, rid: int) -> None:
        slots = self.slots.pop(rid)
        for slot in slots:
            self.rows[self.place(slot)] = None
        width = self.page_size * self.dcp_size
        self.free = sorted({slot // width for slot in slots}) + self.free

    def saved_raw(self, rid: int) -> list[tuple[int, Mark]]:
        """(rank, mark) of every row that raw use of the slots saves, rank by rank."""
        return [
            (rank, self.rows.get((rank, slot)))
            for rank in range(self.dcp_size)
            for slot in self.slots[rid]
        ]

    def restore_raw(self, rid: int, saved: list[tuple[int, Mark]]) -> None:
        for i, (rank, mark) in enumerate(saved):
            self.rows[rank, self.slots[rid][i % self.tokens]] = mark

    def held(self, rid: int) -> list[tuple[int, int, Mark]]:
        """(position, rank, mark) of every position of a request."""
        return [
            (position, self.place(slot)[0], self.rows.get(self.place(slot)))
            for position, slot in enumerate(self.slots[rid])
        ]

    def damaged(self, victim: int) -> set[tuple[int, int]]:
        """(request, position) of every row of another request that is not its own any more."""
        return {
            (rid, position)
            for rid in self.slots
            if rid != victim
            for position, _, mark in self.held(rid)
            if mark != (rid, position)
        }
