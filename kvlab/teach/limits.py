"""A reader's code runs quietly and for a bounded time.

A loop that never ends would hang the notebook. Where the platform has interval timers, and in the
main thread (where a kernel runs cells), the call is cut off; elsewhere it has no bound.
"""

import contextlib
import io
import signal
import threading
from collections.abc import Iterator

SECONDS = 10.0


class OutOfTime(BaseException):
    """The reader's code ran longer than it may. No Exception, so that no ``except`` keeps it."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[io.StringIO]:
    """Collect what is printed, and raise OutOfTime after ``seconds``."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if threading.current_thread() is not threading.main_thread() or not _has_timer():
            yield said
            return
        before = signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield said
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _has_timer() -> bool:
    return hasattr(signal, "setitimer")


def _stop(*_: object) -> None:
    raise OutOfTime
