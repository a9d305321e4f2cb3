"""A small decode node, run to its end and then asked step by step: who runs, who sits on the host.

The node serves six requests by the rules of the decode node, jumping from event to event as the
study of retraction counts does (the node that steps over real pools gives the same). The pool is
bounded by the rows of one rank, so more ranks hold more tokens. A run is made once for each setting
and kept.

Worked example: 64 rows a rank in pages of 4 are 16 pages, 64 tokens at DCP 1 and 256 at DCP 4.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import pandas as pd

from kvlab.engine import CountingNode, Event, NodeConfig, RunResult
from kvlab.engine.workload import Request
from kvlab.errors import StudyError
from kvlab.index import DcpLayout
from kvlab.lab.timeline import intervals, pool_fill

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
