"""Events as an array and back: what a kept run holds of its schedule."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvlab.engine import Event, EventKind

KINDS: tuple[EventKind, ...] = ("arrive", "admit", "retract", "resume", "finish", "abort")


def as_array(events: Iterable[Event]) -> NDArray[np.int32]:
    """int32 ``(events, 4)``: step, kind, request, KV tokens."""
    rows = [(e.step, KINDS.index(e.kind), e.rid, e.tokens) for e in events]
    return np.array(rows, np.int32).reshape(-1, 4)


def events_of(rows: NDArray[np.generic]) -> list[Event]:
    """The events again."""
    return [Event(step, KINDS[kind], rid, n) for step, kind, rid, n in rows.tolist()]
