"""What the tests of the studies share."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd

from kvlab.engine.workload import LengthModel, Lognormal, generate_closed_loop
from kvlab.lab.retraction import GIB, RetractionStudy
from kvlab.memory import geometry

MODEL = "Kimi-Linear-48B-A3B"
TOKEN = geometry(MODEL).bytes_per_token("bf16")
LENGTHS = LengthModel(Lognormal(9.0, 0.6, 1, 40), Lognormal(12.0, 0.6, 1, 40))
SMALL = generate_closed_loop(40, LENGTHS, seed=1)
PAGE = 4


def lines(table: pd.DataFrame) -> list[SimpleNamespace]:
    """The rows of a table, its columns as attributes, plain Python values."""
    return [
        SimpleNamespace(**{str(k): v for k, v in row.items()}) for row in table.to_dict("records")
    ]


def pages(count: int, page_size: int = PAGE) -> float:
    """The budget in GiB that buys ``count`` pages and the padding page of one rank."""
    return (count + 1.5) * page_size * TOKEN / GIB


def study(**changes: Any) -> RetractionStudy:
    """Small pools that run dry."""
    base = RetractionStudy(
        SMALL,
        dcp_sizes=(1, 2, 3),
        budgets_gib=(pages(20), pages(45)),
        page_size=PAGE,
        concurrency=12,
        reserved_decode_tokens=2,
    )
    return replace(base, **changes)
