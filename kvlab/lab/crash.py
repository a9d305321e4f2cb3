"""The crash, on real pools: what retraction did before the fix and what it does now.

A node is filled with requests whose rows carry (request, position). The victim of the node's own
rule is backed up on every rank and freed; its pages are reused, and it is restored into new slots.

Source: SGLang issue 38645; ``MLATokenToKVPool.get_cpu_copy`` before PR 39487.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor

from kvlab.engine import FingerprintCells
from kvlab.engine.policy import victim_key
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots, raw_use_of_page
from kvlab.memory import PagedTokenToKVPoolAllocator, ReqToTokenPool

Regime = Literal["full", "low"]
Code = Literal["before", "after"]
CHUNK = 8192


def copy_out(buffer: Tensor, ids: Tensor, chunk: int = CHUNK) -> list[list[Tensor]]:
    """The defect, kept on purpose: rows ``ids`` of every layer, by chunks, with no localization.

    ``buffer`` ``(layers, rows, elements)``; ``ids`` int64 ``(n,)`` as ``req_to_token`` holds them:
    they are rows only at DCP 1. Raises where an id is out of range (IndexError on CPU, a
    device-side assert on CUDA) and is silent where it is not.
    """
    ids = ids.to(buffer.device)
    return [[layer[part].to("cpu") for part in torch.split(ids, chunk)] for layer in buffer]


def copy_in(buffer: Tensor, copies: list[list[Tensor]], ids: Tensor, chunk: int = CHUNK) -> None:
    """The other half of the defect: write the chunks to rows ``ids``, which may be another's."""
    ids = ids.to(buffer.device)
    for layer, chunks in zip(buffer, copies, strict=True):
        for part, rows in zip(torch.split(ids, chunk), chunks, strict=True):
            layer[part] = rows.to(buffer.device)


class CopyError(Exception):
    """A copy failed on ``rank`` with the text of torch."""

    def __init__(self, text: str, rank: int) -> None:
        super().__init__(text)
        self.text, self.rank = text, rank


class CellsBeforeFix(FingerprintCells):
    """Backup and restore use widened ids as rows. Errors: CopyError where one is no row."""

    def back_up(self, rid: int, slots: WidenedSlots) -> list[Any]:
        made = []
        for pool in self.pools:
            try:
                made.append(copy_out(pool.buffer, slots.ids))
            except IndexError as error:
                raise CopyError(str(error), pool.rank) from error
        return made

    def restore(self, rid: int, backups: list[Any], slots: WidenedSlots) -> None:
        for pool, copy in zip(self.pools, backups, strict=True):
            copy_in(pool.buffer, copy, slots.ids)


def saved_rows(backups: list[Any]) -> list[Tensor]:
    """The rows of layer 0 that each rank saved, with the fix or before it."""
    return [torch.cat(b[0]) if isinstance(b, list) else b.kv[0].clone() for b in backups]


class CrashNode:
    """Requests 0, 1, ... of ``tokens`` cached positions each; generated tokens fall with rid.

    ``reuse_low``: the oldest finishes, and a newcomer, the next victim, takes its low pages.
    Errors: StudyError for a pool that they do not fit.
    """

    def __init__(
        self,
        layout: DcpLayout,
        requests: int,
        tokens: int,
        device: str = "cpu",
        *,
        code: Code = "after",
        reuse_low: bool = False,
    ) -> None:
        self.layout, self.tokens = layout, tokens
        kind = FingerprintCells if code == "after" else CellsBeforeFix
        self.cells = kind(layout, device=device)
        self.allocator = PagedTokenToKVPoolAllocator(layout)
        self.table = ReqToTokenPool(requests, tokens, layout)
        self.rows: dict[int, int] = {}
        for rid in range(requests):
            self.admit(rid)
        if reuse_low:
            self.give_up(0)
            self.admit(requests)

    def victim(self) -> int:
        """Whom the node's own rule retracts: the newest has generated least."""
        return min(self.rows, key=lambda rid: victim_key(-rid, self.tokens, rid))

    def pages(self, rid: int) -> tuple[int, ...]:
        return tuple(torch.unique(self.slots(rid).ids // self.allocator.page_size).tolist())

    def admit(self, rid: int) -> None:
        """A request enters: it gets slots, and its fingerprints are written."""
        slots = self.take(rid)
        positions = torch.arange(len(slots))
        self.cells.write(torch.full_like(positions, rid), positions, slots.ids)

    def take(self, rid: int) -> WidenedSlots:
        ids = self.allocator.alloc_extend(0, self.tokens)
        row = self.table.alloc()
        if ids is None or row is None:
            raise StudyError(
                f"the pool of {self.layout.num_pages} pages has no room for another request of "
                f"{self.tokens} positions; use more pages"
            )
        self.table.append(row, ids)
        self.rows[rid] = row
        return self.slots(rid)

    def slots(self, rid: int) -> WidenedSlots:
        return self.table.slots(self.rows[rid])

    def give_up(self, rid: int) -> None:
        slots = self.slots(rid)
        self.cells.release(rid, slots)
        self.allocator.free(slots.ids)
        self.table.free(self.rows.pop(rid))

    def held(self, rid: int) -> pd.DataFrame:
        """One row a position of the request: what its owner holds there, and a verdict."""
        slots, parts = self.slots(rid), []
        for pool in self.cells.pools:
            rows = pool.resolve(slots)
            held = named(pool.buffer[0][rows.ids], pool.rank)
            held.insert(1, "row", rows.ids.tolist())
            held.insert(1, "position", rows.source.tolist())
            parts.append(held)
        table = pd.concat(parts).sort_values("position").reset_index(drop=True)
        right = (table["holds_request"] == rid) & (table["holds_position"] == table["position"])
        table["verdict"] = "another token"
        table.loc[table["holds_request"] < 0, "verdict"] = "not restored"
        table.loc[right, "verdict"] = "right"
        return table

    def damaged(self, victim: int) -> pd.DataFrame:
        """The positions of all other requests that no longer hold what was written."""
        others = [self.held(rid).assign(request=rid) for rid in self.rows if rid != victim]
        table = pd.concat(others, ignore_index=True)
        table = table[table["verdict"] != "right"].reset_index(drop=True)
        return table[["request", *table.columns.drop("request")]]


def named(rows: Tensor, rank: int) -> pd.DataFrame:
    """Request and position that each fingerprint row names; -1 for a row that holds none."""
    marks = rows.cpu()
    live = (marks[:, 0] == marks[:, 3]) & (marks[:, 0] > 0)
    ids = torch.where(live[:, None], marks[:, :2] - 1, -1.0).to(torch.int64).numpy()
    return pd.DataFrame({"rank": rank, "holds_request": ids[:, 0], "holds_position": ids[:, 1]})


def page_census(layout: DcpLayout) -> pd.DataFrame:
    """For every page that can be handed out: what raw use of its slots as rows would do.

    Columns page, first_slot, last_slot, outcome ('silent', 'straddling', 'out_of_range').
    """
    table = pd.DataFrame({"page": range(1, layout.num_pages + 1)})
    table["first_slot"] = table["page"] * layout.widened_page_size
    table["last_slot"] = table["first_slot"] + layout.widened_page_size - 1
    table["outcome"] = [raw_use_of_page(layout, page) for page in table["page"].tolist()]
    return table


def requests_at_low_use(dcp_size: int, pages: int) -> int:
    """Requests of so many pages each that must run so that wrong rows hit running requests.

    Raw use of page q reaches the rows of pages ``q*c .. q*c+c-1``; the victim's pages lie in
    ``1 .. 2k`` before and after, so what is below ``(2k+1) * c`` is filled.
    """
    return -(-(2 * pages + 1) * dcp_size // pages) + 1


@dataclass(frozen=True, slots=True)
class CrashStudy:
    """One retraction on real pools of all ranks.

    Args:
        layout: pool and DCP size.
        regime: "full": the victim owns high pages, its ids are past the buffer, and before the fix
            the first copy fails; "low": few pages are used and every id is in range, but the rows
            saved belong to other tokens, and the restore overwrites others' rows.
        code: "before" or "after" the fix.
        same_slots: restore into the very slots that were given up, instead of new ones.
        tokens_per_request: cached positions of each request; None takes two and a half pages.

    Errors: StudyError for a pool too small for the regime, or a run that would take CUDA along.
    """

    layout: DcpLayout
    regime: Regime = "full"
    code: Code = "before"
    same_slots: bool = False
    tokens_per_request: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.regime not in get_args(Regime) or self.code not in get_args(Code):
            raise StudyError(
                f"regime is full or low, code before or after: got {self.regime!r}, {self.code!r}"
            )
        doomed = self.code == "before" and self.regime == "full" and self.layout.dcp_size > 1
        if doomed and self.device.startswith("cuda"):
            raise StudyError(
                f"on {self.device} this study ends in a device-side assert, after which the "
                f"process can use CUDA no more: call crash_in_child(layout, {self.device!r})"
            )
        if self.tokens < 2:
            raise StudyError(f"a request needs at least 2 cached positions: got {self.tokens}")
        least = max(2, self.requests)
        need = least * self.layout.pages_for(self.tokens)
        if self.layout.num_pages < need:
            raise StudyError(
                f"the {self.regime} regime needs {least} requests of "
                f"{self.tokens} positions in the pool, {need} pages: got num_pages="
                f"{self.layout.num_pages}; use more pages or fewer tokens_per_request"
            )

    @property
    def requests(self) -> int:
        """Requests in the node: as many as fit, or few, but enough for wrong rows to be live."""
        each = self.layout.pages_for(self.tokens)
        if self.regime == "full":
            return self.layout.num_pages // each
        return requests_at_low_use(self.layout.dcp_size, each)

    @property
    def tokens(self) -> int:
        """Cached positions of each request: by default two and a half pages, and ragged."""
        if self.tokens_per_request is not None:
            return self.tokens_per_request
        return 2 * self.layout.widened_page_size + self.layout.widened_page_size // 2 + 1

    def run(self) -> "CrashResult":
        low = self.regime == "low"
        node = CrashNode(
            self.layout, self.requests, self.tokens, self.device, code=self.code, reuse_low=low
        )
        cells, victim = node.cells, node.victim()
        pages = node.pages(victim)
        try:
            backups = cells.back_up(victim, node.slots(victim))
        except CopyError as failed:
            return CrashResult(self, victim, pages, failed.text, failed.rank)
        saved = [named(rows, rank) for rank, rows in enumerate(saved_rows(backups))]
        node.give_up(victim)
        if not self.same_slots:
            node.admit(2 * self.requests)  # a newcomer takes the pages that were given up
            node.give_up(min(node.rows))  # the oldest finishes; the victim gets its pages
        new = node.take(victim)
        cells.restore(victim, backups, new)
        consistent = None
        if self.code == "before":  # a check that reads the same raw rows again
            again = zip(saved_rows(backups), saved_rows(cells.back_up(victim, new)), strict=True)
            consistent = all(torch.equal(mine, theirs) for mine, theirs in again)
        return CrashResult(
            study=self,
            victim=victim,
            victim_pages=pages,
            saved=pd.concat(saved, ignore_index=True),
            restored=node.held(victim),
            damaged=node.damaged(victim),
            self_consistent=consistent,
        )


@dataclass(frozen=True, slots=True, eq=False)
class CrashResult:
    """What a study found.

    ``error``: text of the first failure and ``failed_rank``, or None. ``saved``: one row for each
    row that a rank saved, with the request and position it belonged to. ``restored``: one row a
    position of the victim, with what its owner holds after the restore. ``damaged``: rows of other
    requests that changed. ``self_consistent``: reading the raw rows back gives what was saved.
    """

    study: CrashStudy
    victim: int
    victim_pages: tuple[int, ...]
    error: str | None = None
    failed_rank: int | None = None
    saved: pd.DataFrame = field(default_factory=pd.DataFrame)
    restored: pd.DataFrame = field(default_factory=pd.DataFrame)
    damaged: pd.DataFrame = field(default_factory=pd.DataFrame)
    self_consistent: bool | None = None

    def wrong(self) -> int:
        return int((self.restored["verdict"] != "right").sum()) if len(self.restored) else 0

    def wrong_by_rank(self) -> pd.DataFrame:
        """One row a rank: positions it owns, and how many of them are wrong."""
        grouped = self.restored.groupby("rank")["verdict"]
        table = grouped.agg(positions="size", wrong=lambda v: int((v != "right").sum()))
        return table.reset_index()

    def summary(self) -> dict[str, object]:
        return {
            "dcp_size": self.study.layout.dcp_size,
            **{name: getattr(self.study, name) for name in ("regime", "code", "same_slots")},
            "victim": self.victim,
            "victim_pages": list(self.victim_pages),
            "error": self.error,
            "failed_rank": self.failed_rank,
            "positions": self.study.tokens,
            "wrong_positions": None if self.error else self.wrong(),
            "damaged_rows": None if self.error else len(self.damaged),
            "self_consistent": self.self_consistent,
        }
