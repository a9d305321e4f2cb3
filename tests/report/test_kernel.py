"""A channel looks at its socket in slices, so a missed wake-up costs a slice and not a time-out."""

import asyncio
from queue import Empty
from typing import Any

import pytest

from kvlab.report.kernel import SlicedChannel, SlicedClient

LONGEST_POLL_MS = 250


class Sleepy:
    """A socket whose poll misses its wake-up ``misses`` times and notes how long it was to wait."""

    def __init__(self, misses: int) -> None:
        self.misses, self.waits = misses, list[float]()

    async def poll(self, timeout: float) -> int:
        """No message, until the misses are used up."""
        self.waits.append(timeout)
        self.misses -= 1
        return int(self.misses < 0)


def channel(misses: int) -> tuple[SlicedChannel, Sleepy]:
    """A channel on a sleepy socket, made without a kernel."""
    made, socket = SlicedChannel.__new__(SlicedChannel), Sleepy(misses)

    async def receive(**kwargs: Any) -> dict[str, Any]:
        return {"header": "here"}

    made.socket = socket  # type: ignore[assignment]
    made._recv = receive  # type: ignore[method-assign]
    return made, socket


def test_a_missed_wake_up_costs_a_slice() -> None:
    made, socket = channel(misses=3)
    assert asyncio.run(made.get_msg(timeout=None)) == {"header": "here"}
    assert socket.waits == [LONGEST_POLL_MS] * 4


def test_no_poll_is_longer_than_what_is_left() -> None:
    made, socket = channel(misses=0)
    assert asyncio.run(made.get_msg(timeout=0.1)) == {"header": "here"}
    assert all(wait <= 100 for wait in socket.waits)


def test_the_time_out_of_the_caller_still_holds() -> None:
    made, _ = channel(misses=10**9)
    with pytest.raises(Empty):
        asyncio.run(made.get_msg(timeout=0))


def test_all_channels_of_a_client_are_sliced() -> None:
    client = SlicedClient()
    for name in ("shell", "iopub", "stdin", "control"):
        assert getattr(client, f"{name}_channel_class") is SlicedChannel
