"""A right backup, seen from inside: every row of every rank before, during, and after.

Requests fill a small pool of real rows that name their request and position. The newest is backed
up and freed; a newcomer takes its pages; the oldest finishes, and the backup is restored into the
pages that it leaves. After each of the four steps every row of every rank is read, and every row
of every host copy that is not consumed yet.

Worked example, c=2, P=2, 3 cached positions: the request holds page 3, slots 12, 13, 14. Rank 0
keeps positions 0 and 2 in rows 6 and 7, rank 1 position 1 in row 6, and their host copies have
two rows and one. Restored into page 1, the same positions lie in rows 2 and 3, and in row 2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from kvlab.errors import KvlabError, StudyError
from kvlab.index import (
    DcpLayout,
    WidenedSlots,
    localize,
    localize_masked,
    localize_strided,
)
from kvlab.lab.crash_node import CrashNode, named
from kvlab.memory import KvBackup

STEPS = ("before", "backed up and freed", "pages reused", "restored")


@dataclass(frozen=True, slots=True, eq=False)
class BackupTrace:
    """What ``BackupSteps.run`` saw.

    ``cells``: one row for each row of a buffer or a host copy: ``step``, ``rank``, ``place``
    ('buffer', 'host'), ``row``, ``page`` (-1 on the host), ``request`` and ``position`` (-1: none).
    ``old`` and ``new``: slots of the victim; ``moved``: one row a position: ``position``, and
    slot, owner and row of both. ``copies``: one row a rank: rows, bytes, checksum.
    """

    victim: int
    old: WidenedSlots
    new: WidenedSlots
    moved: pd.DataFrame
    cells: pd.DataFrame
    copies: pd.DataFrame


@dataclass(frozen=True, slots=True)
class BackupSteps:
    """Back up, free, reuse, restore one request of ``seqlen`` tokens; ``requests`` share the pool.

    Errors: StudyError for a request without a cached position, fewer than two requests, or a pool
    that they do not fit.
    """

    layout: DcpLayout
    seqlen: int
    requests: int = 3
    device: str = "cpu"

    def __post_init__(self) -> None:
        need = self.requests * self.layout.pages_for(max(0, self.seqlen - 1))
        if self.seqlen < 2 or self.requests < 2 or need > self.layout.num_pages:
            raise StudyError(
                f"the steps need seqlen >= 2, at least 2 requests, and a pool of all their pages: "
                f"got seqlen={self.seqlen}, requests={self.requests}, num_pages="
                f"{self.layout.num_pages}, bound {need}; use more pages or fewer requests"
            )

    def run(self) -> BackupTrace:
        """All four steps on real pools of all ranks, every row read after each."""
        node = CrashNode(self.layout, self.requests, self.seqlen - 1, self.device)
        victim = node.victim()
        old = node.slots(victim)
        frames = [_read(node, [], STEPS[0])]
        copies = node.cells.back_up(victim, old)
        about = pd.DataFrame(
            [{"rank": c.rank, "rows": c.rows, "bytes": c.nbytes, "sum": c.checksum} for c in copies]
        )
        node.give_up(victim)
        frames.append(_read(node, copies, STEPS[1]))
        node.admit(self.requests)
        frames.append(_read(node, copies, STEPS[2]))
        node.give_up(min(node.rows))
        new = node.take(victim)
        node.cells.restore(victim, copies, new)
        node.cells.check(victim, new)
        frames.append(_read(node, [], STEPS[3]))
        cells = pd.concat(frames, ignore_index=True)
        return BackupTrace(victim, old, new, self._moved(old, new), cells, about)

    def _moved(self, old: WidenedSlots, new: WidenedSlots) -> pd.DataFrame:
        table: dict[str, list[int]] = {"position": list(range(len(old)))}
        for name, slots in (("old", old.ids), ("new", new.ids)):
            table[f"{name}_slot"] = slots.tolist()
            rule = self.layout.shard(0)
            table[f"{name}_owner"] = rule.owner(slots).tolist()
            table[f"{name}_row"] = rule.row(slots).tolist()
        return pd.DataFrame(table)


def _read(node: CrashNode, copies: list[KvBackup], step: str) -> pd.DataFrame:
    """Every row of every buffer, and of the host copies."""
    parts = []
    for pool in node.cells.pools:
        rows = named(pool.buffer[0], pool.rank)
        pages = [row // node.layout.page_size for row in range(len(rows))]
        parts.append(rows.assign(place="buffer", row=range(len(rows)), page=pages))
    for copy in copies:
        rows = named(copy.kv[0], copy.rank)
        parts.append(rows.assign(place="host", row=range(len(rows)), page=-1))
    table = pd.concat(parts, ignore_index=True)
    table = table.rename(columns={"holds_request": "request", "holds_position": "position"})
    # A rank that holds nothing gives an empty table, whose columns pandas takes for floats.
    counts = ["rank", "row", "page", "request", "position"]
    table[counts] = table[counts].astype("int64")
    return table.assign(step=step)[["step", "rank", "place", "row", "page", "request", "position"]]


def localize_ways(ids: Tensor, dcp_size: int, chunk: int) -> pd.DataFrame:
    """One row a rank: the rows that four ways of localizing a run from position 0 give it.

    Args:
        ids: int64 ``(n,)`` slots, one run or several joined.
        chunk: ids of a chunk, for the way that cuts first.

    Columns: ``rank``; lists of rows: ``mask`` (always right), ``localize``, ``stride`` (unchecked),
    ``cut_first`` (unchecked stride in each chunk). The layout only has to hold the ids.
    """
    layout = DcpLayout(dcp_size, 1, int(ids.max()) // dcp_size + 1)
    parts = [ids[at : at + chunk] for at in range(0, len(ids), chunk)]
    return pd.DataFrame(
        [
            {
                "rank": rank,
                "mask": localize_masked(ids, layout.shard(rank)).tolist(),
                "localize": localize(WidenedSlots(ids), layout, rank).ids.tolist(),
                "stride": localize_strided(ids, layout.shard(rank), check=False).tolist(),
                "cut_first": torch.cat(
                    [localize_strided(part, layout.shard(rank), check=False) for part in parts]
                ).tolist(),
            }
            for rank in range(dcp_size)
        ]
    )


def refusal(call: Callable[[], object]) -> str:
    """The class and text of the error that ``call`` is refused with, for a reader to read.

    Errors: StudyError when the call goes through: then there was nothing to show.
    """
    try:
        result = call()
    except KvlabError as error:
        return f"{type(error).__name__}: {error}"
    raise StudyError(
        f"this call was to be refused and was not: it returned a {type(result).__name__}; show "
        f"its result instead"
    )
