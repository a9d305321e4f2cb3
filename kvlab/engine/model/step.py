"""One step as the layers of the model see it: the pools, the plan, and the form of the attention.

It travels as one keyword argument of the model call (``kvlab_step=...``), so that nothing of a step
is kept in the model.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvlab.engine.model.plan import StepPlan
from kvlab.engine.model.pools import ModelPools
from kvlab.errors import RankMismatchError

# The keyword argument of the model call that carries the step.
STEP = "kvlab_step"
Form = Literal["absorbed", "expanded"]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """``form``: "absorbed" maps queries into the latent space and never expands a key, "expanded"
    lets the layer expand keys and values of every row.

    Errors: RankMismatchError for a plan that was made for another layout than the pools'.
    """

    pools: ModelPools
    plan: StepPlan
    form: Form = "absorbed"

    def __post_init__(self) -> None:
        if self.plan.layout != self.pools.layout:
            raise RankMismatchError(
                f"a plan belongs to one layout: the plan's is {self.plan.layout}, the pools' "
                f"{self.pools.layout}; call plan_step with the pools' layout"
            )

    def write(self, layer: int, latent: Tensor, rope: Tensor) -> None:
        """Store the new rows ``(B, 1, T, width)`` of a global layer, each on the rank that owns
        its slot."""
        dense = self.pools.dense[layer]
        for pool in self.pools.ranks:
            pool.set_mla_kv_buffer(
                dense,
                self.plan.write_slots,
                latent.reshape(-1, latent.shape[-1]),
                rope.reshape(-1, rope.shape[-1]),
            )

    def read(self, layer: int, rank: int) -> tuple[Tensor, Tensor]:
        """What a rank holds for the requests of the step: ``(B, L, width)`` latent and rope."""
        rows = self.plan.shards[rank].rows
        latent, rope = self.pools.ranks[rank].get_mla_kv_buffer(self.pools.dense[layer], rows)
        # Widths are named: a rank that holds nothing yet has no elements to infer them from.
        shape = (self.plan.batch, self.plan.shards[rank].keys)
        return latent.view(*shape, latent.shape[1]), rope.view(*shape, rope.shape[1])

    def read_all(self, layer: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rows of all ranks, rank after rank: ``(B, 1, sum of L, width)`` of each part."""
        parts = [self.read(layer, rank) for rank in range(self.plan.layout.dcp_size)]
        latent = torch.cat([part[0] for part in parts], dim=1)
        rope = torch.cat([part[1] for part in parts], dim=1)
        return latent[:, None].to(dtype), rope[:, None].to(dtype)
