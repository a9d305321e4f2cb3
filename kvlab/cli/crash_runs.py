"""One retraction of ``kvlab crash``: here, or in a child where it would take the process along."""

from collections import Counter
from dataclasses import dataclass

from kvlab.cli.output import records
from kvlab.cli.values import require_ranks
from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.crash import Code, CrashResult, CrashStudy, Regime
from kvlab.lab.crash_cuda import ChildResult, crash_in_child

# Slots of the largest pool that a regime is run on. Filling 2**23 slots takes about a minute;
# the low regime touches few of them, and 2**27 take 2 GiB of memory.
LARGEST: dict[str, int] = {"full": 2**23, "low": 2**27}
# Each rank is asked about each position of each request: about a microsecond each time.
MOST_LOOKS = 2**27


@dataclass(frozen=True, slots=True)
class Run:
    """What a retraction did. ``child`` when it ended in a child process, else ``result``."""

    regime: Regime
    code: Code
    result: CrashResult | None = None
    child: ChildResult | None = None

    @property
    def error(self) -> str | None:
        """The text of the failure, or None."""
        if self.child is not None:
            return self.child.message if self.child.exit_code else None
        return self.result.error if self.result is not None else None

    def document(self) -> dict[str, object]:
        """Plain values for JSON."""
        head = {"regime": self.regime, "code": self.code, "error": self.error}
        if self.result is None:
            child = self.child
            return head | {
                "in_child": True,
                "exit_code": None if child is None else child.exit_code,
                "tail": [] if child is None else list(child.tail),
            }
        damaged = self.result.damaged
        requests = damaged["request"].tolist() if len(damaged) else []
        return head | {
            "in_child": False,
            **self.result.summary(),
            "wrong_by_rank": records(self.result.wrong_by_rank()) if self.finished else [],
            "damaged_by_request": [
                {"request": rid, "rows": rows} for rid, rows in sorted(Counter(requests).items())
            ],
        }

    @property
    def finished(self) -> bool:
        """Whether the copies went through, so that there is something to look at."""
        return self.result is not None and self.result.error is None

    def row(self) -> dict[str, object]:
        """One row of the table for people."""
        facts = {"regime": self.regime, "code": self.code, "ends in": "an error"}
        if self.result is None:
            return facts | {"victim": None}
        found = self.result.summary()
        ends = {"ends in": "wrong rows" if self.result.wrong() else "right rows"}
        return {
            **facts,
            **(ends if self.finished else {}),
            "victim": found["victim"],
            "pages": ",".join(map(str, self.result.victim_pages)),
            "positions": found["positions"],
            "wrong": found["wrong_positions"],
            "damaged": found["damaged_rows"],
            "reads back": found["self_consistent"],
        }

    def sentence(self) -> str:
        """What happened, in words."""
        name = f"{self.regime}, {self.code} the fix:"
        if self.child is not None:
            return f"{name} the child ended with exit code {self.child.exit_code}: {self.error}"
        assert self.result is not None
        if self.result.error is not None:
            return f"{name} rank {self.result.failed_rank} failed: {self.result.error}"
        wrong = self.result.wrong_by_rank()
        if not self.result.wrong() and not len(self.result.damaged):
            return f"{name} every position is right on every rank"
        ranks = ", ".join(f"{r}: {n}" for r, n in zip(wrong["rank"], wrong["wrong"], strict=True))
        first = self.result.restored.query("verdict != 'right'").iloc[0]
        holds = (
            f"holds request {first['holds_request']}, position {first['holds_position']}"
            if first["holds_request"] >= 0
            else "was not restored"
        )
        return (
            f"{name} no error, but wrong positions on rank {ranks}; the row of position "
            f"{first['position']} (rank {first['rank']}) {holds}; "
            f"{len(self.result.damaged)} rows of other requests are overwritten"
        )


def attempt(
    layout: DcpLayout,
    regime: Regime,
    code: Code,
    same_slots: bool,
    tokens: int | None,
    device: str,
) -> Run:
    """One retraction. Errors: StudyError when the pool is too small or too large for it."""
    require_ranks(layout.dcp_size, "use fewer ranks or --census, which needs no pool")
    if layout.slot_end > LARGEST[regime]:
        raise StudyError(
            f"the {regime} regime runs on real pools of at most {LARGEST[regime]:,} slots: got "
            f"{layout.slot_end:,}; use fewer pages or --census, which needs no pool"
        )
    sized = CrashStudy(layout, regime, "after", same_slots, tokens, device)
    looks = layout.dcp_size * sized.requests * sized.tokens
    if looks > MOST_LOOKS:
        raise StudyError(
            f"the {regime} regime asks each rank about each position, at most {MOST_LOOKS:,} "
            f"times: got {layout.dcp_size:,} ranks and {sized.requests:,} requests of "
            f"{sized.tokens:,} positions, {looks:,} times; use fewer ranks, fewer pages or --census"
        )
    if device != "cpu" and (regime, code) == ("full", "before") and layout.dcp_size > 1:
        # The pool was checked above; the child has its own.
        return Run(regime, code, child=crash_in_child(layout, device))
    return Run(regime, code, CrashStudy(layout, regime, code, same_slots, tokens, device).run())
