"""A transfer that is as late as it may be, so that a wrong order shows every time.

On a GPU a backup runs beside the node, and rows that are written over too early come back as
another request's once a month. Here a backup moves its bytes when somebody waits for it, or just
before the pool is next written to: whoever leaves that question out sees the newcomer's rows.
"""

from torch import Tensor

from kvlab.memory import HostTransfer, PendingCopy


class LateTransfer(HostTransfer):
    """Backups of a CPU pool that copy nothing before they must. Restores run at once."""

    def __init__(self) -> None:
        self._late: list[PendingCopy] = []

    def back_up(self, buffer: Tensor, rows: Tensor, kv: Tensor, page_size: int) -> PendingCopy:
        """A copy in flight, until it is waited for or ``before_write`` is called."""

        def land() -> Tensor:
            return HostTransfer().back_up(buffer, rows, kv, page_size).wait()

        copy = PendingCopy(land=land)
        self._late.append(copy)
        return copy

    def before_write(self) -> None:
        """Whatever is in flight has to be read first."""
        for copy in self._late:
            copy.settle()
        self._late.clear()
