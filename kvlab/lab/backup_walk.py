"""Backup and restore of one request, step by step on real pools, with the fix and without it.

    0 before    1 backed up    2 freed    3 pages reused    4 room again    5 restored

Requests fill a small pool of real rows that name their request and position. The newest, the
victim, is backed up and freed; a newcomer takes its pages; the oldest finishes, and the backup is
restored into the pages that it leaves. After each step every row of every rank is read, and every
row of every host copy that is not consumed yet.

``backup_walk(pool="low")``: few pages are in use and the victim holds the lowest, so the code
before the fix finds every wrong row and says nothing. ``pool="full"``: the victim holds the
highest, and its slots are past the rows of a rank: the backup fails, and no later step is reached.

Worked example, c=2, P=2, 3 positions, with the fix: the victim holds page 3, slots 12, 13, 14. Rank
0 saves positions 0 and 2 from rows 6 and 7, rank 1 position 1 from row 6. Restored into page 1 they
lie in rows 2 and 3, and in row 2. Without the fix each rank saves three rows, those that the three
slots name.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.crash import (
    AfterFix,
    BeforeFix,
    CopyError,
    CrashNode,
    named,
    requests_at_low_use,
)

STEPS = ("before", "backed up", "freed", "pages reused", "room again", "restored")
#: The steps of ``BackupWalk.table``, and what it calls them.
FOUR_STEPS = {0: "before", 2: "backed up and freed", 3: "pages reused", 5: "restored"}
COLUMNS = ("rank", "place", "row", "request", "position", "verdict")
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
        if not isinstance(step, int) or not 0 <= step < len(self.steps):
            raise StudyError(
                f"a step of a backup and a restore is a whole number in [0, {len(self.steps)}): "
                f"got {step!r}; {', '.join(f'{i} {name}' for i, name in enumerate(STEPS))}"
            )
        return self.steps[step]

    def table(self) -> pd.DataFrame:
        """The cells of the four steps of ``FOUR_STEPS``: step, rank, place, row, page (-1 on the
        host), request, position."""
        parts = [self.at(step).cells.assign(step=name) for step, name in FOUR_STEPS.items()]
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

    Errors: StudyError for a length below 1 or another pool; LayoutError for sizes below 1.
    """
    if length < 1 or pool not in ("low", "full"):
        raise StudyError(
            f"a walk has a length of at least 1 position and a pool that is low or full: got "
            f"length={length}, pool={pool!r}"
        )
    each = DcpLayout(dcp_size, page_size, 1).pages_for(length)
    requests = 3 if pool == "full" else requests_at_low_use(dcp_size, each)
    layout = DcpLayout(dcp_size, page_size, requests * each)
    node = CrashNode(layout, requests, length, "cpu")
    if pool == "low":
        node.give_up(0)  # finishes; its low pages go to the newest, the victim
        node.admit(requests)
    return _walk(node, 2 * requests, fix)


def walk_layout(
    layout: DcpLayout, length: int, requests: int = 3, device: str = "cpu"
) -> BackupWalk:
    """The walk, with the fix, of ``requests`` of ``length`` cached positions in a pool of yours.

    Errors: StudyError for a pool that they do not fit.
    """
    return _walk(CrashNode(layout, requests, length, device), requests, fix=True)


def _walk(node: CrashNode, newcomer: int, fix: bool) -> BackupWalk:
    victim = node.victim()
    old, pages = node.slots(victim), node.pages(victim)
    steps: list[Step] = []

    def step(told: str, host: list[pd.DataFrame]) -> None:
        steps.append(Step(STEPS[len(steps)], told, _read(node, host, set())))

    told = f"Request {victim} holds page {_list(pages)}; its slots are named in req_to_token, its "
    step(f"{told}rows lie on all ranks.", [])
    try:
        path = (AfterFix if fix else BeforeFix)(node.cells, victim, old)
    except CopyError as error:
        told = (
            f"Rank {error.rank} used slots as rows, past its last row {node.layout.row_end - 1}: "
            f"{error.text}. The process ends here."
        )
        for name in STEPS[1:]:
            words = told if name == STEPS[1] else f"Not reached. {told}"
            steps.append(Step(name, words, steps[0].cells, failed=True))
        return BackupWalk(node.layout, victim, old, None, pd.DataFrame(), tuple(steps))
    copies = pd.DataFrame(
        [
            {"rank": copy.rank, "rows": copy.rows, "bytes": copy.nbytes, "sum": copy.checksum}
            for copy in (path.copies if isinstance(path, AfterFix) else [])
        ]
    )
    host = [named(rows, rank) for rank, rows in enumerate(path.saved())]
    saved = ", ".join(str(len(rows)) for rows in host)
    alien = sum(int((rows["holds_request"] != victim).sum()) for rows in host)
    own = "all of them the victim's" if not alien else f"{alien} of them not the victim's"
    step(f"Ranks copied {saved} rows to the host, {own}.", host)
    node.give_up(victim)
    step(f"Page {_list(pages)} is free on every rank.", host)
    node.admit(newcomer)
    step(f"A newcomer, request {newcomer}, took page {_list(node.pages(newcomer))}.", host)
    oldest = min(node.rows)
    node.give_up(oldest)
    new = node.take(victim)
    told = f"Request {oldest} finished; the victim was given page {_list(node.pages(victim))}, "
    step(f"{told}nothing is in it yet.", host)
    path.restore(new)
    rows = _wrong_rows(node)
    bad = sum(rid == victim for rid in rows.values())
    damaged = len(rows) - bad
    told = (
        f"Of the victim's {len(new)} positions {len(new) - bad} are right, {bad} are not; "
        f"{damaged} rows of running requests were overwritten. Nothing was raised."
    )
    steps.append(Step(STEPS[5], told, _read(node, [], set(rows)), bad, damaged))
    return BackupWalk(node.layout, victim, old, new, copies, tuple(steps))


def _list(pages: tuple[int, ...]) -> str:
    return ", ".join(map(str, pages))


def _wrong_rows(node: CrashNode) -> dict[tuple[int, int], int]:
    """(rank, row) of each position of a running request whose row does not hold its token, with
    the request."""
    found: dict[tuple[int, int], int] = {}
    for rid in node.rows:
        held = node.held(rid)
        wrong = held[held["verdict"] != "right"]
        places = zip(wrong["rank"], wrong["row"], strict=True)
        found |= {(int(rank), int(row)): rid for rank, row in places}
    return found


def _read(node: CrashNode, host: list[pd.DataFrame], wrong: set[tuple[int, int]]) -> pd.DataFrame:
    """Every row of every buffer and of the host copies."""
    parts = [named(pool.buffer[0], pool.rank).assign(place="buffer") for pool in node.cells.pools]
    parts += [rows.assign(place="host") for rows in host if len(rows)]
    table = pd.concat([part.assign(row=range(len(part))) for part in parts], ignore_index=True)
    table = table.rename(columns={"holds_request": "request", "holds_position": "position"})
    verdict = np.full(len(table), "", object)
    for rank, row in wrong:
        verdict[rank * node.layout.rows_per_rank + row] = "wrong"
    return table.assign(verdict=verdict)[list(COLUMNS)]
