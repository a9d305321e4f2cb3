"""Workloads: the requests a decode node is asked to serve, loaded or generated."""

from kvlab.engine.workload.base import MAX_TOKENS, Request, Workload
from kvlab.engine.workload.generate import (
    LONG_CHAT,
    LengthModel,
    Lognormal,
    fit_length_model,
    generate_closed_loop,
    generate_open_loop,
)
from kvlab.engine.workload.loaders import (
    default_workload,
    load_azure_csv,
    load_csv,
    load_mooncake_jsonl,
    load_trace,
    save_csv,
)

__all__ = [
    "LONG_CHAT",
    "MAX_TOKENS",
    "LengthModel",
    "Lognormal",
    "Request",
    "Workload",
    "default_workload",
    "fit_length_model",
    "generate_closed_loop",
    "generate_open_loop",
    "load_azure_csv",
    "load_csv",
    "load_mooncake_jsonl",
    "load_trace",
    "save_csv",
]
