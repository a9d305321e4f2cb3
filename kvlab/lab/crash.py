"""The crash, on real pools: what retraction did before the fix and what it does now.

A node is filled with requests whose rows carry (request, position). A victim is chosen by the
node's own rule, backed up on every rank and freed; its pages are reused, and it is restored into
new slots.
``code="before"`` uses widened ids as rows (``before_fix``), ``code="after"`` the pools' own copies.

Two regimes decide what is seen. ``full``: the pool is full, as in natural retraction; the victim
owns high pages, its ids are past the buffer, and the first copy fails. ``low``: retraction is
forced while few pages are used, on a request that reused low pages; every id is in range and
nothing fails, but the rows saved belong to other tokens, and the restore overwrites others' rows.
"""

from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from kvlab.errors import StudyError
from kvlab.index import DcpLayout, raw_use_of_page
from kvlab.lab.crash_node import AfterFix, BeforeFix, CopyError, CrashNode, named

Regime = Literal["full", "low"]
Code = Literal["before", "after"]


def page_census(layout: DcpLayout) -> pd.DataFrame:
    """For every page that can be handed out: what raw use of its slots as rows would do.

    Columns page, first_slot, last_slot, outcome ('silent', 'straddling', 'out_of_range').
    """
    width = layout.widened_page_size
    pages = range(1, layout.num_pages + 1)
    return pd.DataFrame(
        {
            "page": pages,
            "first_slot": [p * width for p in pages],
            "last_slot": [(p + 1) * width - 1 for p in pages],
            "outcome": [raw_use_of_page(layout, p) for p in pages],
        }
    )


@dataclass(frozen=True, slots=True)
class CrashStudy:
    """One retraction on real pools of all ranks.

    Args:
        layout: pool and DCP size.
        regime: "full" fills the pool before the retraction, "low" uses its lowest pages only.
        code: "before" or "after" the fix.
        same_slots: restore into the very slots that were given up, instead of new ones.
        tokens_per_request: cached positions of each request; None takes two and a half pages.

    Errors: StudyError for an unknown name or a pool too small for the regime.
    """

    layout: DcpLayout
    regime: Regime = "full"
    code: Code = "before"
    same_slots: bool = False
    tokens_per_request: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.regime not in ("full", "low") or self.code not in ("before", "after"):
            raise StudyError(
                f"regime must be full or low, code before or after: got regime={self.regime!r}, "
                f"code={self.code!r}"
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
        """Requests in the node: as many as fit, or few, but enough for wrong rows to be live.

        Raw use of page q reaches the rows of pages ``q*c .. q*c+c-1``. With pages 1 .. 2k of the
        victim (before and after) that is below ``(2k+1) * c``, so that much is filled.
        """
        each = self.layout.pages_for(self.tokens)
        if self.regime == "full":
            return self.layout.num_pages // each
        return -(-(2 * each + 1) * self.layout.dcp_size // each) + 1

    @property
    def tokens(self) -> int:
        """Cached positions of each request: by default two and a half pages, and ragged."""
        if self.tokens_per_request is not None:
            return self.tokens_per_request
        return 2 * self.layout.widened_page_size + self.layout.widened_page_size // 2 + 1

    def run(self) -> "CrashResult":
        """Fill, retract, reuse, restore; what each rank's rows then hold."""
        node = CrashNode(self.layout, self.requests, self.tokens, self.device)
        if self.regime == "low":
            node.give_up(0)  # finishes; its low pages go to the newest request, the victim
            node.admit(self.requests)
        victim = node.victim()
        pages = node.pages(victim)
        way: type[AfterFix | BeforeFix] = AfterFix if self.code == "after" else BeforeFix
        try:
            path = way(node.cells, victim, node.slots(victim))
        except CopyError as failed:
            return CrashResult(self, victim, pages, failed.text, failed.rank)
        saved = pd.concat([named(rows, r) for r, rows in enumerate(path.saved())])
        node.give_up(victim)
        if not self.same_slots:
            node.admit(2 * self.requests)  # a newcomer takes the pages that were given up
            node.give_up(min(node.rows))  # the oldest finishes; the victim gets its pages
        new = node.take(victim)
        path.restore(new)
        return CrashResult(
            study=self,
            victim=victim,
            victim_pages=pages,
            saved=saved.reset_index(drop=True),
            restored=node.held(victim),
            damaged=node.damaged(victim),
            self_consistent=path.reads_back(new),
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
        """Positions of the victim whose row is not right after the restore."""
        return int((self.restored["verdict"] != "right").sum()) if len(self.restored) else 0

    def wrong_by_rank(self) -> pd.DataFrame:
        """One row a rank: positions it owns, and how many of them are wrong."""
        grouped = self.restored.groupby("rank")["verdict"]
        table = grouped.agg(positions="size", wrong=lambda v: int((v != "right").sum()))
        return table.reset_index()

    def summary(self) -> dict[str, object]:
        """A flat row: what was tried, what happened."""
        lay = self.study.layout
        return {
            "dcp_size": lay.dcp_size,
            "regime": self.study.regime,
            "code": self.study.code,
            "same_slots": self.study.same_slots,
            "victim": self.victim,
            "victim_pages": list(self.victim_pages),
            "error": self.error,
            "failed_rank": self.failed_rank,
            "positions": self.study.tokens,
            "wrong_positions": None if self.error else self.wrong(),
            "damaged_rows": None if self.error else len(self.damaged),
            "self_consistent": self.self_consistent,
        }
