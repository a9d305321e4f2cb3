"""The pools and the allocator of one rank: mutable state, each class with an ``audit()``."""

from kvlab.memory.all_ranks import back_up_ranks, restore_ranks
from kvlab.memory.allocator import PagedTokenToKVPoolAllocator
from kvlab.memory.backup import KvBackup, StateBackup
from kvlab.memory.capacity import PoolPlan, plan_pool
from kvlab.memory.geometry import ModelGeometry, geometry, load_geometries
from kvlab.memory.given_geometry import given_geometry
from kvlab.memory.host import HostArena
from kvlab.memory.hybrid import HybridLinearKVPool
from kvlab.memory.lanes import CudaLane, DeferredLane, ImmediateLane, Lane
from kvlab.memory.mla_pool import MLATokenToKVPool
from kvlab.memory.published import load_published
from kvlab.memory.replicated import ReplicatedKVPool
from kvlab.memory.req_to_token import ReqToTokenPool
from kvlab.memory.staged_lane import StagedLane
from kvlab.memory.state_pool import StatePool
from kvlab.memory.unified import PageTable, UnifiedKVPool

__all__ = [
    "CudaLane",
    "DeferredLane",
    "HostArena",
    "HybridLinearKVPool",
    "ImmediateLane",
    "KvBackup",
    "Lane",
    "MLATokenToKVPool",
    "ModelGeometry",
    "PageTable",
    "PagedTokenToKVPoolAllocator",
    "PoolPlan",
    "ReplicatedKVPool",
    "ReqToTokenPool",
    "StagedLane",
    "StateBackup",
    "StatePool",
    "UnifiedKVPool",
    "back_up_ranks",
    "geometry",
    "given_geometry",
    "load_geometries",
    "load_published",
    "plan_pool",
    "restore_ranks",
]
