"""Partial attention over one rank's rows, and the merge of the partials by their LSE.

Rank r attends over its own keys and returns ``out`` and ``lse = log(sum(exp(score)))``. Over all
ranks ``L = logsumexp(lse)`` and ``out = sum_r exp(lse_r - L) * out_r``.

Worked example: two shards with sums of exponentials Z = 2 and 8 and outputs 1 and 0 merge to
2 / (2 + 8) = 0.2. Read in the wrong log base the same partials give 0.2767 or 0.1192, silently.
"""

from kvlab.attn.partial import (
    Partial,
    merge_partials,
    merge_stacked,
    require_stacked,
    stack_partials,
)
from kvlab.attn.shard import partial_attention

__all__ = [
    "Partial",
    "merge_partials",
    "merge_stacked",
    "partial_attention",
    "require_stacked",
    "stack_partials",
]
