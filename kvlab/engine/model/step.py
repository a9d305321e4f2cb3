"""One step as the layers of the model see it: the pools, the plan, and the form of the attention.

It travels as one keyword argument of the model call (``kvlab_step=...``), so that nothing of a step
is kept in the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from kvlab.attn import Partial
from kvlab.engine.model.plan import StepPlan
from kvlab.engine.model.pools import ModelPools
from kvlab.errors import PoolError, RankMismatchError
from kvlab.ops import merge_partials

# The keyword argument of the model call that carries the step.
STEP = "kvlab_step"
Form = Literal["absorbed", "expanded"]
# How the partials of more than one rank become one.
Merge = Callable[[Sequence[Partial]], Partial]


def require_form(form: str) -> None:
    """Errors: PoolError for a form that is not one of ``Form``."""
    if form not in get_args(Form):
        raise PoolError(
            f"an attention has one of the forms {', '.join(get_args(Form))}: got {form!r}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``form``: "absorbed" maps queries into the latent space and never expands a key, "expanded"
    lets the layer expand keys and values of every row. ``merge``: of the ranks' partials; one rank
    merges nothing. ``select_padding``: padding rows of a ragged batch are set to 0 in the copy that
    is read, so that nothing in the padding page can reach a token. A study that shows what goes
    wrong otherwise passes another merge, or False.

    Errors: RankMismatchError for a plan that was made for another layout than the pools',
    PoolError for another form.
    """

    pools: ModelPools
    plan: StepPlan
    form: Form = "absorbed"
    merge: Merge = merge_partials
    select_padding: bool = True

    def __post_init__(self) -> None:
        require_form(self.form)
        if self.plan.layout != self.pools.layout:
            raise RankMismatchError(
                f"a plan belongs to one layout: the plan's is {self.plan.layout}, the pools' "
                f"{self.pools.layout}; call plan_step with the pools' layout"
            )

    def write(self, layer: int, latent: Tensor, rope: Tensor) -> None:
        """Store the new rows ``(B, 1, T, width)`` of a global layer, each on the rank that owns
        its slot."""
        dense = self.pools.dense[layer]
        rows = torch.cat([latent, rope], dim=-1).view(-1, latent.shape[-1] + rope.shape[-1])
        for pool, shard in zip(self.pools.ranks, self.plan.shards, strict=True):
            if shard.new is not None and shard.new_rows is not None:
                pool.put_rows(dense, shard.new_rows, rows[shard.new])

    def read(self, layer: int, rank: int) -> Tensor:
        """What a rank holds for the requests of the step, a copy: ``(B, L, elements)``, the latent
        part of each row first."""
        shard = self.plan.shards[rank]
        stored = self.pools.ranks[rank].get_rows(self.pools.dense[layer], shard.rows)
        if self.select_padding and shard.padding is not None:
            stored.index_fill_(0, shard.padding, 0)
        # The width is named: a rank that holds nothing yet has no elements to infer it from.
        return stored.view(self.plan.batch, shard.keys, stored.shape[1])

    def read_ranks(self, layer: int) -> Tensor:
        """What each rank holds, side by side: ``(c, B, longest L, elements)``, 0 past a rank's own
        L. So one operation serves all ranks of the process."""
        parts = [self.read(layer, rank) for rank in range(self.plan.layout.dcp_size)]
        shapes = {part.shape for part in parts}
        if len(shapes) == 1:
            return torch.stack(parts) if len(parts) > 1 else parts[0][None]
        batch, keys, elements = max(shapes)
        rows = parts[0].new_zeros(len(parts), batch, keys, elements)
        for line, part in zip(rows, parts, strict=True):
            line[:, : part.shape[1]] = part
        return rows

    def read_all(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows of all ranks, rank after rank: ``(B, 1, sum of L, width)`` of each part."""
        parts = [self.read(layer, rank) for rank in range(self.plan.layout.dcp_size)]
        rows = torch.cat(parts, dim=1)[:, None].to(dtype)
        cut = self.pools.shape.kv_lora_rank
        return rows[..., :cut], rows[..., cut:]
