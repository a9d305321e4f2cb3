"""Which rank am I? The parallel context, and c ranks in one process."""

from kvlab.ranks.parallel import Parallel, ParallelContext, get_parallel, require_rank_here

__all__ = ["Parallel", "ParallelContext", "get_parallel", "require_rank_here"]
