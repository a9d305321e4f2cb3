"""From the events of a run to intervals: who waited, ran, or sat on the host, and when.

Spans of steps are half open: who is admitted at step 3 and finishes in the forward of step 5 runs
in [3, 6). Example, 6 prompt and 4 output tokens, alone: admitted at step 0 with 6 KV tokens; the
prefill made its first token and each forward adds one, so it runs in [0, 3) and ends with 9.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd

from kvlab.engine import CountingNode, Event, NodeConfig, RunResult
from kvlab.engine.workload import Request
from kvlab.errors import StudyError
from kvlab.index import DcpLayout

COLUMNS = ("rid", "state", "begin", "end", "first_tokens", "last_tokens", "left_by")
#: The state that an event puts a request in; the other kinds end its last interval.
_STATE = {"arrive": "waiting", "admit": "running", "resume": "running", "retract": "retracted"}


def intervals(events: Iterable[Event]) -> pd.DataFrame:
    """One row for each stay of a request in a state, by rid and then in time.

    Columns: ``rid``; ``state`` ('waiting', 'running', 'retracted'); ``begin``, ``end``: steps, end
    excluded; ``first_tokens``, ``last_tokens``: KV tokens held (on the host, when retracted) as
    the stay began and ended; ``left_by``: the event that ended it. Who was retracted without a
    backup, and is admitted again, is 'waiting' in between: the host holds nothing of it.

    Errors: StudyError for events of a run that was not recorded from start to end.
    """
    rows: list[tuple[object, ...]] = []
    open_at: dict[int, Event] = {}
    for event in events:
        before = open_at.pop(event.rid, None)
        if (before is None) != (event.kind == "arrive"):
            raise StudyError(
                f"a request arrives once, and before all else: request {event.rid} has the event "
                f"{event.kind} at step {event.step}; record the run from its first step"
            )
        if before is not None:
            rows.append(_stay(before, event))
        if event.kind in _STATE:
            open_at[event.rid] = event
    if open_at:
        raise StudyError(
            f"every request finishes or is aborted: request {min(open_at)} does not; record the "
            f"run to its end"
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("rid", kind="stable", ignore_index=True)


def _stay(before: Event, event: Event) -> tuple[object, ...]:
    """A row: ``before`` began it, ``event`` ended it."""
    state, tokens = _STATE[before.kind], (before.tokens, before.tokens)
    ran = event.step - before.step
    if state == "waiting" or (before.kind, event.kind) == ("retract", "admit"):
        state, tokens = "waiting", (0, 0)  # perhaps to be prefilled again
    elif state == "running":
        # A forward adds one token to whoever runs, so the tokens say how long it ran; the step of
        # the event does not: a finish is noted in the step of the forward that made it.
        tokens, ran = (before.tokens, event.tokens), event.tokens - before.tokens
    return before.rid, state, before.step, before.step + ran, *tokens, event.kind


def pool_fill(table: pd.DataFrame, layout: DcpLayout) -> pd.DataFrame:
    """One row a step, after its forward: what the running requests hold.

    Args:
        table: from ``intervals``.
        layout: pools of the node; its widened page is what a request holds in whole.

    Columns: ``step``; ``running`` requests; ``tokens``: KV tokens; ``pages`` of W slots;
    ``held_tokens`` = pages * W; ``capacity_tokens``. Cost: one step of one request is one addition.
    """
    runs = table[table["state"] == "running"]
    steps = int(table["end"].max()) if len(table) else 0
    running, tokens, pages = np.zeros((3, steps), dtype=np.int64)
    for begin, end, first in zip(runs["begin"], runs["end"], runs["first_tokens"], strict=True):
        kv = first + 1 + np.arange(end - begin)
        running[begin:end] += 1
        tokens[begin:end] += kv
        pages[begin:end] += -(-kv // layout.widened_page_size)
    return pd.DataFrame(
        {
            "step": np.arange(steps),
            "running": running,
            "tokens": tokens,
            "pages": pages,
            "held_tokens": pages * layout.widened_page_size,
            "capacity_tokens": layout.capacity_tokens,
        }
    )


def retracted_runs(table: pd.DataFrame, layout: DcpLayout) -> pd.DataFrame:
    """One row a retraction: how long the run of positions is that was given back, and how ragged.

    Columns: ``rid``, ``step``, ``positions`` (seqlen - 1), and what is left of them when divided by
    ``past_rank`` c, ``past_page`` P, ``past_widened_page`` W.
    """
    gone = table[table["left_by"] == "retract"].reset_index(drop=True)
    positions = gone["last_tokens"]
    return pd.DataFrame(
        {
            "rid": gone["rid"],
            "step": gone["end"],
            "positions": positions,
            "past_rank": positions % layout.dcp_size,
            "past_page": positions % layout.page_size,
            "past_widened_page": positions % layout.widened_page_size,
        }
    )


PAGE_SIZE, RESERVE = 4, 8
PROMPTS, OUTPUTS = (12, 20, 16, 12, 24, 16), (72, 60, 96, 84, 48, 64)
Restore = Literal["backup", "recompute"]


@dataclass(frozen=True, slots=True, eq=False)
class NodeWalk:
    """``stays``: as ``intervals``; ``fill``: as ``pool_fill``; ``steps`` of the run."""

    layout: DcpLayout
    stays: pd.DataFrame
    fill: pd.DataFrame
    result: RunResult

    @property
    def steps(self) -> int:
        return len(self.fill)

    def at(self, step: int) -> dict[str, object]:
        """The numbers of one step, after its forward: rids by state, tokens, pages, events.

        Errors: StudyError for a step that the run has not.
        """
        if not 0 <= step < self.steps:
            raise StudyError(f"a step of this run lies in [0, {self.steps}): got {step}")
        now = self.stays[(self.stays["begin"] <= step) & (step < self.stays["end"])]
        row = self.fill.iloc[step]
        return {
            **{
                state: now.loc[now["state"] == state, "rid"].tolist()
                for state in ("running", "retracted", "waiting")
            },
            **{name: int(row[name]) for name in ("tokens", "pages", "held_tokens")},
            "events": [(e.kind, e.rid) for e in self.result.events if e.step == step],
        }


def requests() -> list[Request]:
    """The six requests of ``node_walk``, all there from the start."""
    lengths = enumerate(zip(PROMPTS, OUTPUTS, strict=True))
    return [Request(rid, 0.0, prompt, output) for rid, (prompt, output) in lengths]


@lru_cache(maxsize=128)
def node_walk(dcp_size: int, capacity: int, restore: Restore = "backup") -> NodeWalk:
    """The run of a small decode node with ``capacity`` rows a rank: more ranks hold more tokens.

    Errors: StudyError for rows that are no whole pages.
    """
    if capacity < PAGE_SIZE or capacity % PAGE_SIZE:
        raise StudyError(f"a rank has whole pages of {PAGE_SIZE} rows: got capacity={capacity}")
    layout = DcpLayout(dcp_size, PAGE_SIZE, capacity // PAGE_SIZE)
    config = NodeConfig(
        layout,
        restore=restore,
        admission="reserved" if restore == "backup" else "new_token_ratio",
        reserved_decode_tokens=RESERVE,
    )
    result = CountingNode(config).run(requests(), record=True)
    stays = intervals(result.events)
    return NodeWalk(layout, stays, pool_fill(stays, layout), result)
