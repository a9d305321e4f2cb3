"""From the events of a run to intervals: who waited, ran, or sat on the host, and when.

``node_walk`` is a small run to look at: six requests by the rules of the decode node, in a pool
that is bounded by the rows of one rank, so more ranks hold more tokens.

A recorded run is a list of events; a picture of it needs spans. A step's arrivals, resumptions,
admissions and retractions come before its forward, finishes after it, so in half-open spans of
steps a request that is admitted at step 3 and finishes in the forward of step 5 runs in [3, 6).

Worked example, 6 prompt and 4 output tokens, alone: it arrives and is admitted at step 0 with 6 KV
tokens, and each forward adds one. The prefill made its first token, so three forwards make the
others: it runs in [0, 3) and ends with 9 KV tokens.
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

    Errors: StudyError for events of which a request has one before it arrived, or that stop
    before it finished or was aborted (a run that was not recorded from start to end).
    """
    rows: list[dict[str, object]] = []
    open_at: dict[int, Event] = {}
    for event in events:
        before = open_at.pop(event.rid, None)
        if (before is None) != (event.kind == "arrive"):
            raise StudyError(
                f"a request arrives once, and before all else: request {event.rid} has the event "
                f"{event.kind} at step {event.step} {'after' if before else 'without'} its "
                f"arrival; record the run from its first step, record=True"
            )
        if before is not None:
            rows.append(_stay(before, event))
        if event.kind in _STATE:
            open_at[event.rid] = event
    if open_at:
        rid, last = min(open_at.items())
        raise StudyError(
            f"every request finishes or is aborted: request {rid} ends with {last.kind} at step "
            f"{last.step}, as do {len(open_at) - 1} others; record the run to its end"
        )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.sort_values("rid", kind="stable", ignore_index=True)


def _stay(before: Event, event: Event) -> dict[str, object]:
    state = _STATE[before.kind]
    if (before.kind, event.kind) == ("retract", "admit"):
        state = "waiting"  # to be prefilled again
    running = state == "running"
    # A forward adds one token to whoever runs, so the tokens say how long it ran; the step of the
    # event alone does not, because a finish is noted in the step of the forward that made it.
    ran = event.tokens - before.tokens if running else event.step - before.step
    return {
        "rid": before.rid,
        "state": state,
        "begin": before.step,
        "end": before.step + ran,
        "first_tokens": 0 if state == "waiting" else before.tokens,
        "last_tokens": event.tokens if running else 0 if state == "waiting" else before.tokens,
        "left_by": event.kind,
    }


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
    running, tokens, pages = (np.zeros(steps, dtype=np.int64) for _ in range(3))
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
    Of those backed up, the positions of the backup.

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
    """``stays``: as ``intervals``; ``fill``: as ``pool_fill``; ``events`` in order; ``steps``."""

    layout: DcpLayout
    stays: pd.DataFrame
    fill: pd.DataFrame
    result: RunResult

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return len(self.fill)

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened, in order."""
        return self.result.events

    def at(self, step: int) -> dict[str, object]:
        """The numbers of one step, after its forward: rids by state, tokens, pages, events.

        Errors: StudyError for a step that the run has not.
        """
        if not 0 <= step < self.steps:
            raise StudyError(f"a step of this run lies in [0, {self.steps}): got {step}")
        now = self.stays[(self.stays["begin"] <= step) & (step < self.stays["end"])]
        rids = {
            state: now.loc[now["state"] == state, "rid"].tolist()
            for state in ("running", "retracted", "waiting")
        }
        row = self.fill.iloc[step]
        happened = [(e.kind, e.rid) for e in self.events if e.step == step]
        return {
            **rids,
            **{"tokens": int(row["tokens"]), "pages": int(row["pages"])},
            **{"held_tokens": int(row["held_tokens"]), "events": happened},
        }


def requests() -> list[Request]:
    """The six requests, all there from the start."""
    return [
        Request(rid, 0.0, prompt_tokens=prompt, output_tokens=output)
        for rid, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True))
    ]


@lru_cache(maxsize=128)
def node_walk(dcp_size: int, capacity: int, restore: Restore = "backup") -> NodeWalk:
    """The run of a node with ``capacity`` rows a rank.

    Errors: StudyError for rows that are no whole pages, or an unknown way back.
    """
    if capacity < PAGE_SIZE or capacity % PAGE_SIZE or restore not in ("backup", "recompute"):
        raise StudyError(
            f"a node has whole pages of {PAGE_SIZE} rows, at least one, and restores by backup or "
            f"recompute: got capacity={capacity}, restore={restore!r}"
        )
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
