"""A reader's code runs quietly and for a bounded time.

A loop that never ends would hang the notebook. Where the platform has interval timers, and in the
main thread (where a kernel runs cells), the call is cut off; elsewhere it has no bound.
"""

import contextlib
import io
import signal
import threading
from collections.abc import Iterator

SECONDS, AGAIN = 10.0, 0.2
KEPT = 2000


class Tail(io.TextIOBase):
    """Keeps the last ``KEPT`` letters of what is written: an endless loop may print, too."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        """Take ``text`` in."""
        self.text = (self.text + text[-KEPT:])[-KEPT:]
        return len(text)

    def writable(self) -> bool:
        """It is written to."""
        return True


class OutOfTime(BaseException):
    """The reader's code ran longer than it may. No Exception, so that no ``except`` keeps it."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[Tail]:
    """Collect the end of what is printed, and raise OutOfTime after ``seconds``.

    It is raised again until the code ends, since a bare ``except`` in a loop swallows the first.
    """
    said = Tail()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if threading.current_thread() is not threading.main_thread() or not _has_timer():
            yield said
            return
        before = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            yield said
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _has_timer() -> bool:
    return hasattr(signal, "setitimer")


def _stop(*_: object) -> None:
    raise OutOfTime
