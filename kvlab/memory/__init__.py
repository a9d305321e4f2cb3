"""Pools, allocator, request table and host backups, and the geometry that sizes them.

What changes has an ``audit()``, which returns its broken laws.
"""

from kvlab.memory.allocator import PagedTokenToKVPoolAllocator
from kvlab.memory.backup import HostArena, HostTransfer, KvBackup, PendingCopy, StateBackup
from kvlab.memory.geometry import (
    ModelGeometry,
    geometry,
    given_geometry,
    load_geometries,
    plan_pool,
)
from kvlab.memory.hybrid import HybridLinearKVPool
from kvlab.memory.pool import MLATokenToKVPool, ReplicatedKVPool, back_up_ranks, restore_ranks
from kvlab.memory.published import load_published
from kvlab.memory.req_to_token import ReqToTokenPool
from kvlab.memory.state_pool import StatePool
from kvlab.memory.transfer import CudaStreams, StagedTransfer, default_transfer
from kvlab.memory.unified import PageTable, UnifiedKVPool

__all__ = [
    "CudaStreams",
    "HostArena",
    "HostTransfer",
    "HybridLinearKVPool",
    "KvBackup",
    "MLATokenToKVPool",
    "ModelGeometry",
    "PageTable",
    "PagedTokenToKVPoolAllocator",
    "PendingCopy",
    "ReplicatedKVPool",
    "ReqToTokenPool",
    "StagedTransfer",
    "StateBackup",
    "StatePool",
    "UnifiedKVPool",
    "back_up_ranks",
    "default_transfer",
    "geometry",
    "given_geometry",
    "load_geometries",
    "load_published",
    "plan_pool",
    "restore_ranks",
]
