"""How the rules of a node and the result of a run show themselves in a notebook cell, as HTML.

A result shows its counters, and the requests that were retracted most: how often, and, of a run
that was recorded, what happened to each, step by step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kvlab.index.reprs import GAP, Cell, block, facts, strip

MOST_REQUESTS = 8
MOST_STORIES, MOST_EVENTS = 3, 7
_COLORS = {"retract": 5, "resume": 2}  # vermillion and green; the word stands in the cell


class Told(Protocol):
    """What is shown of an ``Event``."""

    @property
    def step(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def rid(self) -> int: ...


class Ended(Protocol):
    """What is shown of an ``Outcome``."""

    @property
    def rid(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def retractions(self) -> int: ...
    @property
    def end_step(self) -> int: ...


def config_html(rules: Iterable[tuple[str, object, bool]]) -> str:
    """The rules of a node. ``rules``: name, value (None: no bound), whether it is the default."""
    return block(
        facts(
            "Node: its pool and the rules it follows (tokens, unless named otherwise)",
            [
                (name, f"{'none' if value is None else value}{' (default)' if default else ''}")
                for name, value, default in rules
            ],
        )
    )


def result_html(
    counters: Mapping[str, int], outcomes: Sequence[Ended], events: Sequence[Told]
) -> str:
    """Counters that are not 0, and the requests that were retracted most. Cost: O(events)."""
    counted = [(name, f"{count:,}") for name, count in counters.items() if count]
    zero = [name for name, count in counters.items() if not count]
    told = [*counted, ("zero", ", ".join(zero))] if zero else counted
    most = sorted(outcomes, key=lambda o: (-o.retractions, o.rid))[:MOST_REQUESTS]
    tables = [facts("Counters of the run (simulated)", told)]
    if most:
        tables.append(_retractions(most, len(outcomes)))
    retracted = [o.rid for o in most[:MOST_STORIES] if o.retractions]
    if events and retracted:
        tables.append(_stories(retracted, events))
    return block(*tables)


def _retractions(most: Sequence[Ended], total: int) -> str:
    heads: list[Cell] = [Cell(o.rid) for o in most]
    times = [Cell(o.retractions, color=5 if o.retractions else None) for o in most]
    ends = [Cell(f"{o.status} {o.end_step}") for o in most]
    if total > len(most):
        heads.append(Cell(f"{GAP} ({total - len(most):,} more)"))
        times.append(Cell(GAP))
        ends.append(Cell(GAP))
    lines = [("request", heads), ("retractions", times), ("ended, at step", ends)]
    return strip("Requests, those retracted most first", lines)


def _stories(rids: Sequence[int], events: Sequence[Told]) -> str:
    """One line a request: its events and their steps, in order."""
    of: dict[int, list[Told]] = {rid: [] for rid in rids}
    for event in events:
        if event.rid in of:
            of[event.rid].append(event)
    wide = max(min(len(story), MOST_EVENTS) for story in of.values())
    lines = [("request", [Cell(f"event {i + 1}") for i in range(wide)])]
    for rid, story in of.items():
        cells = [Cell(f"{e.kind} {e.step}", _COLORS.get(e.kind)) for e in story[:wide]]
        if len(story) > wide:
            cells[-1] = Cell(f"{GAP} ({len(story) - wide + 1:,} more)")
        cells += [Cell("")] * (wide - len(cells))
        lines.append((str(rid), cells))
    return strip("What happened to them, with the step", lines)
