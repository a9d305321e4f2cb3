"""One copy between a pool and the host: in flight, landed, or lost.

A copy that runs beside the caller has two moments that others wait for. After ``freed`` the rows
of the pool may be written by others. After ``ended`` the host memory may be used by others. What
went wrong on the way is known when the copy lands: then ``wait`` raises it, every time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvlab.memory.streams import PAST, Event


@dataclass(slots=True, eq=False)
class Flight:
    """``land`` is called after ``ended``: it returns the checksum, or raises what is wrong; called
    again (after an interrupt) it does the same.

    Whatever the copy needs (rows, buffers) must be kept alive by ``land`` until then.
    """

    freed: Event
    ended: Event
    land: Callable[[], str] | None = field(repr=False)
    checksum: str | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether all bytes have moved. Never waits."""
        return self.ended.done

    def wait(self) -> str:
        """The checksum of the bytes, once they have moved. Errors: what went wrong with them."""
        self.settle()
        if self.error is not None:
            raise self.error
        assert self.checksum is not None
        return self.checksum

    def settle(self) -> None:
        """As ``wait``, but what went wrong is kept for the next ``wait`` and not raised."""
        self.ended.wait()
        self.freed.wait()  # which is past, and known to be from here on
        land = self.land
        if land is None:
            return
        try:
            self.checksum = land()
        except Exception as error:
            self.error = error
        # Last: an interrupt before it, or a second thread, lands once more, to the same end.
        self.land = None


def landed(checksum: str) -> Flight:
    """The flight of a copy that was made at once."""
    return Flight(PAST, PAST, None, checksum)
