"""Workloads: the requests a decode node is asked to serve, loaded or generated."""

from kvlab.engine.workload.requests import (
    LONG_CHAT,
    MAX_TOKENS,
    LengthModel,
    Lognormal,
    Request,
    Workload,
    generate_closed_loop,
    generate_open_loop,
)
from kvlab.engine.workload.traces import default_workload, load_trace, save_csv

__all__ = [
    "LONG_CHAT",
    "MAX_TOKENS",
    "LengthModel",
    "Lognormal",
    "Request",
    "Workload",
    "default_workload",
    "generate_closed_loop",
    "generate_open_loop",
    "load_trace",
    "save_csv",
]
