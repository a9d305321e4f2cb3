"""A real model over the pools of c ranks: plan, cache, attention, and the cells of the scheduler.

Importing this package imports transformers, which takes seconds: nothing else of kvlab does.

Kimi Linear and DeepSeek V2 and V3 keep the compressed latent in their cache, which is one row of
the MLA pool. Two public extension points of transformers carry the rest: a ``Cache`` (``cache``)
and an attention function (``attention``). kvlab writes no model of its own.
"""

from kvlab.engine.model.attention import (
    NAME,
    STEP,
    Form,
    Merge,
    Step,
    StepCache,
    dcp_attention,
    register,
)
from kvlab.engine.model.backend import ModelCells, Stream, Watch
from kvlab.engine.model.checkpoint import MODEL_TYPES, ModelShape, load_model, model_shape
from kvlab.engine.model.handover import (
    Prefill,
    Prefilled,
    hand_over,
    prefill_apart,
    token_plan,
)
from kvlab.engine.model.plan import RankPlan, StepPlan, plan_step
from kvlab.engine.model.pools import ModelPools, Snapshot, take_snapshot
from kvlab.engine.model.runner import ShardedModel
from kvlab.engine.model.sampling import Forced, Greedy, Sampler, Seeded

__all__ = [
    "MODEL_TYPES",
    "NAME",
    "STEP",
    "Forced",
    "Form",
    "Greedy",
    "Merge",
    "ModelCells",
    "ModelPools",
    "ModelShape",
    "Prefill",
    "Prefilled",
    "RankPlan",
    "Sampler",
    "Seeded",
    "ShardedModel",
    "Snapshot",
    "Step",
    "StepCache",
    "StepPlan",
    "Stream",
    "Watch",
    "dcp_attention",
    "hand_over",
    "load_model",
    "model_shape",
    "plan_step",
    "prefill_apart",
    "register",
    "take_snapshot",
    "token_plan",
]
