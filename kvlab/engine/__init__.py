"""Requests, the rules of a decode node, and two nodes: one that counts, one on real pools."""

from kvlab.engine.backends import CacheBackend, FingerprintCells
from kvlab.engine.counting import CountingNode, Progress, simulate
from kvlab.engine.node import StepNode
from kvlab.engine.policy import NewTokenRatio, NodeConfig, victim_key
from kvlab.engine.result import Counters, Event, EventKind, Outcome, RunResult

__all__ = [
    "CacheBackend",
    "Counters",
    "CountingNode",
    "Event",
    "EventKind",
    "FingerprintCells",
    "NewTokenRatio",
    "NodeConfig",
    "Outcome",
    "Progress",
    "RunResult",
    "StepNode",
    "simulate",
    "victim_key",
]
