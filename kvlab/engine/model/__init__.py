"""A real model over the pools of c ranks: plan, cache, attention, and the cells of the scheduler.

Importing this package imports transformers, which takes seconds: nothing else of kvlab does.

Kimi Linear and DeepSeek V2 and V3 keep the compressed latent in their cache, which is one row of
the MLA pool. Two public extension points of transformers carry the rest: a ``Cache`` (``cache``)
and an attention function (``attention``). kvlab writes no model of its own.
"""

from kvlab.engine.model.attention import NAME, dcp_attention, register
from kvlab.engine.model.cache import StepCache
from kvlab.engine.model.cells import ModelCells, Stream, Watch
from kvlab.engine.model.checkpoint import load_model
from kvlab.engine.model.handover import RankMoves, hand_over, token_plan
from kvlab.engine.model.plan import Shard, StepPlan, plan_step
from kvlab.engine.model.pools import ModelPools
from kvlab.engine.model.prefilled import Prefill, Prefilled, prefill_apart
from kvlab.engine.model.runner import ShardedModel
from kvlab.engine.model.sampling import Forced, Greedy, Sampler, Seeded
from kvlab.engine.model.shape import MODEL_TYPES, ModelShape, model_shape
from kvlab.engine.model.snapshot import Snapshot, take_snapshot
from kvlab.engine.model.step import STEP, Form, Merge, Step

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
    "RankMoves",
    "Sampler",
    "Seeded",
    "Shard",
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
