"""Backup and restore of one request, step by step on real pools, with the fix and without it.

Requests fill a small pool of real rows that name their request and position. The newest, the
victim, is backed up and freed; a newcomer takes its pages; the oldest finishes, and the backup is
restored into the pages that it leaves. After each step every row of every rank is read, and every
row of every host copy that is not consumed yet.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import pandas as pd
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.crash import (
    CellsBeforeFix,
    CopyError,
    CrashNode,
    named,
    requests_at_low_use,
    saved_rows,
)
from kvlab.memory import HostTransfer, KvBackup, PendingCopy

STEPS = ("before", "backed up", "freed", "pages reused", "room again", "restored")
#: The steps of ``BackupWalk.table``, and what it calls them.
FOUR_STEPS = {0: "before", 2: "backed up and freed", 3: "pages reused", 5: "restored"}
Pool = Literal["low", "full"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``cells``: one row for each row of a buffer or host copy: ``rank``, ``place`` ('buffer',
    'host'), ``row``, ``request``, ``position`` (-1: none), ``verdict``: 'wrong' where a running
    request's row does not hold its token, '' elsewhere. ``told``: what happened, in words."""

    name: str
    told: str
    cells: pd.DataFrame
    wrong: int = 0
    damaged: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class BackupWalk:
    """All steps. ``victim``: the request that is backed up; ``old`` and ``new``: its slots before
    and after, ``new`` None where no later step was reached; ``copies``: one row a rank: rows,
    bytes, checksum (empty before the fix)."""

    layout: DcpLayout
    victim: int
    old: WidenedSlots
    new: WidenedSlots | None
    copies: pd.DataFrame
    steps: tuple[Step, ...]

    def at(self, step: int) -> Step:
        """The step of that number. Errors: StudyError for one that there is not."""
        if step not in range(len(STEPS)):
            told = ", ".join(f"{i} {name}" for i, name in enumerate(STEPS))
            raise StudyError(f"a step lies in [0, {len(STEPS)}): got {step!r}; {told}")
        return self.steps[step]

    def table(self) -> pd.DataFrame:
        """The cells of the four steps of ``FOUR_STEPS``: step, rank, place, row, page (-1 on the
        host), request, position."""
        parts = [self.steps[step].cells.assign(step=name) for step, name in FOUR_STEPS.items()]
        cells = pd.concat(parts, ignore_index=True)
        on_host = cells["place"] == "host"
        cells["page"] = (cells["row"] // self.layout.page_size).mask(on_host, -1)
        return cells[["step", "rank", "place", "row", "page", "request", "position"]]

    def moved(self) -> pd.DataFrame:
        """One row a position of the victim: position, and slot, owner and row before and after."""
        shard = self.layout.shard(0)
        table = pd.DataFrame({"position": range(len(self.old))})
        for name, slots in (("old", self.old), ("new", self.new)):
            if slots is not None:
                table[f"{name}_slot"] = slots.ids.tolist()
                table[f"{name}_owner"] = shard.owner(slots.ids).tolist()
                table[f"{name}_row"] = shard.row(slots.ids).tolist()
        return table


@lru_cache(maxsize=64)
def backup_walk(
    dcp_size: int, page_size: int, length: int, pool: Pool = "low", fix: bool = True
) -> BackupWalk:
    """The walk of requests of ``length`` cached positions in a pool that is just large enough.

    ``pool``: "low": few pages are in use and the victim holds the lowest, so the code before the
    fix finds every wrong row and says nothing. "full": the victim holds the highest, and before the
    fix the backup fails. Errors: StudyError, LayoutError for sizes below 1.
    """
    if length < 1 or pool not in get_args(Pool):
        raise StudyError(
            f"a walk has at least 1 position and a pool that is low or full: got {length}, {pool!r}"
        )
    each = DcpLayout(dcp_size, page_size, 1).pages_for(length)
    requests = 3 if pool == "full" else requests_at_low_use(dcp_size, each)
    layout = DcpLayout(dcp_size, page_size, requests * each)
    code: Literal["after", "before"] = "after" if fix else "before"
    return _walk(CrashNode(layout, requests, length, code=code, reuse_low=pool == "low"))


def walk_layout(
    layout: DcpLayout, length: int, requests: int = 3, device: str = "cpu"
) -> BackupWalk:
    """The walk, with the fix, of ``requests`` of ``length`` cached positions in a pool of yours.

    Errors: StudyError for a pool that they do not fit.
    """
    return _walk(CrashNode(layout, requests, length, device))


def _walk(node: CrashNode) -> BackupWalk:
    victim = node.victim()
    old, pages = node.slots(victim), _pages(node, victim)
    steps: list[Step] = []
    host: list[pd.DataFrame] = []

    def step(told: str) -> None:
        steps.append(Step(STEPS[len(steps)], told, _read(node, host)))

    told = f"Request {victim} holds page {pages}; its slots are named in req_to_token, its "
    step(f"{told}rows lie on all ranks.")
    try:
        backups = node.cells.back_up(victim, old)
    except CopyError as error:
        told = (
            f"Rank {error.rank} used slots as rows, past its last row {node.layout.row_end - 1}: "
            f"{error.text}. The process ends here."
        )
        for name in STEPS[1:]:
            words = told if name == STEPS[1] else f"Not reached. {told}"
            steps.append(Step(name, words, steps[0].cells, failed=True))
        return BackupWalk(node.layout, victim, old, None, pd.DataFrame(), tuple(steps))
    kept: list[KvBackup] = [] if isinstance(node.cells, CellsBeforeFix) else backups
    copies = pd.DataFrame(
        [
            {"rank": i, "rows": x.rows, "bytes": x.kv.nbytes, "sum": x.checksum}
            for i, x in enumerate(kept)
        ]
    )
    host += [named(rows, rank) for rank, rows in enumerate(saved_rows(backups))]
    saved = ", ".join(str(len(rows)) for rows in host)
    alien = sum(int((rows["holds_request"] != victim).sum()) for rows in host)
    own = "all of them the victim's" if not alien else f"{alien} of them not the victim's"
    step(f"Ranks copied {saved} rows to the host, {own}.")
    node.give_up(victim)
    step(f"Page {pages} is free on every rank.")
    newcomer = victim + 1
    node.admit(newcomer)
    step(f"A newcomer, request {newcomer}, took page {_pages(node, newcomer)}.")
    oldest = min(node.rows)
    node.give_up(oldest)
    new = node.take(victim)
    told = f"Request {oldest} finished; the victim was given page {_pages(node, victim)}, "
    step(f"{told}nothing is in it yet.")
    node.cells.restore(victim, backups, new)
    held = pd.concat([node.held(rid).assign(request=rid) for rid in node.rows])
    wrong = held[held["verdict"] != "right"]
    bad = int((wrong["request"] == victim).sum())
    damaged = len(wrong) - bad
    told = (
        f"Of the victim's {len(new)} positions {len(new) - bad} are right, {bad} are not; "
        f"{damaged} rows of running requests were overwritten. Nothing was raised."
    )
    cells = _read(node, [])
    at = wrong["rank"] * node.layout.rows_per_rank + wrong["row"]
    cells.loc[at.to_numpy(), "verdict"] = "wrong"
    steps.append(Step(STEPS[5], told, cells, bad, damaged))
    return BackupWalk(node.layout, victim, old, new, copies, tuple(steps))


def _pages(node: CrashNode, rid: int) -> str:
    return ", ".join(map(str, node.pages(rid)))


def _read(node: CrashNode, host: list[pd.DataFrame]) -> pd.DataFrame:
    """Every row of every buffer and of the host copies."""
    parts = [named(pool.buffer[0], pool.rank).assign(place="buffer") for pool in node.cells.pools]
    parts += [rows.assign(place="host") for rows in host if len(rows)]
    table = pd.concat([part.assign(row=range(len(part))) for part in parts], ignore_index=True)
    table = table.rename(columns={"holds_request": "request", "holds_position": "position"})
    return table.assign(verdict="")[["rank", "place", "row", "request", "position", "verdict"]]


class LateTransfer(HostTransfer):
    """Backups of a CPU pool that move their bytes when somebody waits for them, or just before the
    pool is next written to: whoever leaves that question out sees another's rows every time, and
    not once a month as on a GPU. Restores run at once."""

    def __init__(self) -> None:
        self._late: list[PendingCopy] = []

    def copy(
        self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int, want: Tensor | None = None
    ) -> PendingCopy:
        """A backup is in flight, until it is waited for or ``before_write`` is called."""
        if want is not None:
            return super().copy(buffer, rows, kv, page_size, want)
        copy = PendingCopy(land=lambda: HostTransfer().copy(buffer, rows, kv, page_size).wait())
        self._late.append(copy)
        return copy

    def before_write(self) -> None:
        for copy in self._late:
            copy.settle()
        self._late.clear()
