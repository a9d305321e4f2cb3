"""Backup and restore of one request, step by step on real pools, with the fix and without it.

    0 before    1 backed up    2 freed    3 pages reused    4 room again    5 restored

``pool="low"``: few pages are in use and the victim holds the lowest, so the code before the fix
finds every wrong row and says nothing. ``pool="full"``: the victim holds the highest, and its slots
are past the rows of a rank: the backup fails, and no later step is reached.

Worked example, c=2, P=2, 3 positions, with the fix: rank 0 saves positions 0 and 2, rank 1 saves
position 1; without it each rank saves three rows, those that the three slots name.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd
import torch

from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash_node import AfterFix, BeforeFix, CopyError, CrashNode, named

STEPS = ("before", "backed up", "freed", "pages reused", "room again", "restored")
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
    """All steps. ``victim``: the request that is backed up."""

    layout: DcpLayout
    victim: int
    steps: tuple[Step, ...]

    def at(self, step: int) -> Step:
        """The step of that number. Errors: StudyError for one that there is not."""
        if not isinstance(step, int) or not 0 <= step < len(self.steps):
            raise StudyError(
                f"a step of a backup and a restore is a whole number in [0, {len(self.steps)}): "
                f"got {step!r}; {', '.join(f'{i} {name}' for i, name in enumerate(STEPS))}"
            )
        return self.steps[step]


@lru_cache(maxsize=64)
def backup_walk(
    dcp_size: int, page_size: int, length: int, pool: Pool = "low", fix: bool = True
) -> BackupWalk:
    """Run it, and read every row of every rank after each step.

    Args:
        length: cached positions of each request.

    Errors: StudyError for a length below 1 or another pool; LayoutError for sizes below 1.
    """
    if length < 1 or pool not in ("low", "full"):
        raise StudyError(
            f"a walk has a length of at least 1 position and a pool that is low or full: got "
            f"length={length}, pool={pool!r}"
        )
    each = DcpLayout(dcp_size, page_size, 1).pages_for(length)
    # Raw use of page q reaches pages q*c .. q*c+c-1; the victim's lie in 1 .. 2*each.
    requests = 3 if pool == "full" else -(-(2 * each + 1) * dcp_size // each) + 1
    layout = DcpLayout(dcp_size, page_size, requests * each)
    node = CrashNode(layout, requests, length, "cpu")
    if pool == "low":
        node.give_up(0)  # finishes; its low pages go to the newest, the victim
        node.admit(requests)
    victim = node.victim()
    old = node.pages(victim)
    steps = [
        Step(STEPS[0], f"Request {victim} holds page {_list(old)}; its slots are named in "
             f"req_to_token, its rows lie on all ranks.", _read(node, [], set()))
    ]  # fmt: skip
    way: type[AfterFix | BeforeFix] = AfterFix if fix else BeforeFix
    try:
        path = way(node.cells, victim, node.slots(victim))
    except CopyError as error:
        told = (
            f"Rank {error.rank} used slots as rows, past its last row {layout.row_end - 1}: "
            f"{error.text}. The process ends here"
        )
        steps.append(Step(STEPS[1], f"{told}.", steps[0].cells, failed=True))
        for name in STEPS[2:]:
            steps.append(Step(name, f"Not reached. {told}.", steps[0].cells, failed=True))
        return BackupWalk(layout, victim, tuple(steps))
    host = [named(rows, rank) for rank, rows in enumerate(path.saved())]
    saved = ", ".join(str(len(rows)) for rows in host)
    alien = sum(int((rows["holds_request"] != victim).sum()) for rows in host)
    own = "all of them the victim's" if not alien else f"{alien} of them not the victim's"
    steps.append(Step(STEPS[1], f"Ranks copied {saved} rows to the host, {own}.",
                      _read(node, host, set())))  # fmt: skip
    node.give_up(victim)
    steps.append(Step(STEPS[2], f"Page {_list(old)} is free on every rank.",
                      _read(node, host, set())))  # fmt: skip
    node.admit(2 * requests)
    steps.append(Step(STEPS[3], f"A newcomer, request {2 * requests}, took page "
                      f"{_list(node.pages(2 * requests))}.", _read(node, host, set())))  # fmt: skip
    oldest = min(node.rows)
    node.give_up(oldest)
    new = node.take(victim)
    steps.append(Step(STEPS[4], f"Request {oldest} finished; the victim was given page "
                      f"{_list(node.pages(victim))}, nothing is in it yet.",
                      _read(node, host, set())))  # fmt: skip
    path.restore(new)
    rows = _wrong(node)
    bad = sum(rid == victim for rid in rows.values())
    damaged = len(rows) - bad
    told = (
        f"Of the victim's {length} positions {length - bad} are right, {bad} are not; "
        f"{damaged} rows of running requests were overwritten. Nothing was raised."
    )
    steps.append(Step(STEPS[5], told, _read(node, [], set(rows)), bad, damaged))
    return BackupWalk(layout, victim, tuple(steps))


def _list(pages: tuple[int, ...]) -> str:
    return ", ".join(map(str, pages))


def _wrong(node: CrashNode) -> dict[tuple[int, int], int]:
    """(rank, row) of each position of a running request whose row does not hold its token, with
    the request."""
    lay = node.layout
    held = torch.stack([pool.buffer[0] for pool in node.cells.pools])
    live = named(held.flatten(0, 1), 0)
    found: dict[tuple[int, int], int] = {}
    for rid in node.rows:
        ids = node.slots(rid).ids
        owner, row = lay.shard(0).owner(ids), lay.shard(0).row(ids)
        at = (owner * held.shape[1] + row).numpy()
        right = (live["holds_request"].to_numpy()[at] == rid) & (
            live["holds_position"].to_numpy()[at] == range(len(ids))
        )
        for rank, line, good in zip(owner.tolist(), row.tolist(), right, strict=True):
            if not good:
                found[rank, line] = rid
    return found


def _read(node: CrashNode, host: list[pd.DataFrame], wrong: set[tuple[int, int]]) -> pd.DataFrame:
    """Every row of every buffer and of the host copies."""
    held = torch.stack([pool.buffer[0] for pool in node.cells.pools])
    ranks, rows = held.shape[:2]
    parts = [
        named(held.flatten(0, 1), 0).assign(
            rank=np.repeat(np.arange(ranks), rows),
            place="buffer",
            row=np.tile(np.arange(rows), ranks),
        )
    ]
    parts += [one.assign(place="host", row=range(len(one))) for one in host if len(one)]
    table = pd.concat(parts, ignore_index=True)
    table = table.rename(columns={"holds_request": "request", "holds_position": "position"})
    verdict = np.full(len(table), "", object)
    for rank, row in wrong:
        verdict[rank * rows + row] = "wrong"
    return table.assign(verdict=verdict)[list(COLUMNS)]
