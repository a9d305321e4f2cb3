"""From the events of a run to intervals: who waited, ran, or sat on the host, and when.

A recorded run is a list of events; a picture of it needs spans. A step's arrivals, resumptions,
admissions and retractions come before its forward, finishes after it, so in half-open spans of
steps a request that is admitted at step 3 and finishes in the forward of step 5 runs in [3, 6).

Worked example, 6 prompt and 4 output tokens, alone: it arrives and is admitted at step 0 with 6 KV
tokens, and each forward adds one. The prefill made its first token, so three forwards make the
others: it runs in [0, 3) and ends with 9 KV tokens.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from kvlab.engine import Event
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
