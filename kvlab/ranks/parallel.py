"""The parallel context: one place that says which rank runs.

Upstream asks ``get_parallel()`` for DCP size and rank; a unit test or a process that plays several
ranks says ``with get_parallel().override(dcp_size=4, dcp_rank=1): ...``. Here a pool that belongs
to another rank than the context refuses to work, instead of answering with its own rows. Outside
any override nothing is claimed, and every pool serves its own rank.

Ranks of one process share the page table and the layout, nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from kvlab.errors import RankMismatchError
from kvlab.index import Shard


@dataclass(frozen=True, slots=True)
class Parallel:
    """DCP size and rank of the code that runs."""

    dcp_size: int
    dcp_rank: int


_current: ContextVar[Parallel | None] = ContextVar("kvlab_parallel", default=None)


class ParallelContext:
    """What ``get_parallel()`` returns: reads the context; ``override`` sets it for a block."""

    @property
    def current(self) -> Parallel | None:
        """The claim of the innermost override, None outside any."""
        return _current.get()

    @property
    def dcp_size(self) -> int:
        """Ranks that share one request's KV; 1 outside any override."""
        here = _current.get()
        return 1 if here is None else here.dcp_size

    @property
    def dcp_rank(self) -> int:
        """This rank; 0 outside any override."""
        here = _current.get()
        return 0 if here is None else here.dcp_rank

    @contextmanager
    def override(self, *, dcp_size: int, dcp_rank: int) -> Iterator[Parallel]:
        """Run a block as ``dcp_rank`` of ``dcp_size``. Errors: LayoutError for a bad rank."""
        Shard(dcp_size, dcp_rank)  # refuses a rank outside
        token = _current.set(Parallel(dcp_size, dcp_rank))
        try:
            yield Parallel(dcp_size, dcp_rank)
        finally:
            _current.reset(token)


_context = ParallelContext()


def get_parallel() -> ParallelContext:
    """The parallel context of the running code."""
    return _context


def require_rank_here(what: str, dcp_size: int, dcp_rank: int) -> None:
    """Raise RankMismatchError when an override claims another rank or size than ``what`` has."""
    here = _current.get()
    if here is not None and (here.dcp_size, here.dcp_rank) != (dcp_size, dcp_rank):
        raise RankMismatchError(
            f"{what} of rank {dcp_rank} of {dcp_size} cannot serve the context, which is rank "
            f"{here.dcp_rank} of {here.dcp_size}: its rows are another rank's; use this rank's "
            f"own pool, or get_parallel().override(dcp_size={dcp_size}, dcp_rank={dcp_rank})"
        )
