"""Every figure that notebooks show, of small studies: ``FIGURES[name]()`` draws it."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from kvlab.engine import CountingNode, NodeConfig
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from kvlab.lab.backup_walk import BackupWalk, walk_layout
from kvlab.lab.bench.cost import copy_points, localize_points, read_costs, share_points
from kvlab.lab.crash import CrashResult, CrashStudy, page_census
from kvlab.lab.drift import DEFECTS
from kvlab.lab.origin import Origin
from kvlab.lab.owners import OwnerStudy
from kvlab.lab.timeline import intervals, pool_fill
from kvlab.viz import cost, crash, drift, owners, retraction
from kvlab.viz.backup import backup_steps_figure
from kvlab.viz.style import caption
from kvlab.viz.timeline import timeline_figure
from kvlab.viz.tokens import tokens_figure
from tests.lab.bench.cost_rows import record
from tests.viz.drift_tables import FLOORS, tables

ORIGIN = Origin("kvlab", 0, {"dcp_size": 4}, "cpu (2 cores)", {"kvlab": "0"}, None, "2026-01-02")
SMALL = DcpLayout(4, 4, 64)
STUDY = CrashStudy(SMALL, regime="low", tokens_per_request=5 * 16 + 7)
STEPS_LAYOUT = DcpLayout(4, 2, 9)
RUN = OwnerStudy(DcpLayout(4, 4, 8), 38, 0, (3, 1, 5))
SWEEP = pd.DataFrame(
    {
        "dcp_size": [1, 2, 4, 8] * 2,
        "budget_gib": [0.5] * 4 + [2.0] * 4,
        "capacity_tokens": [1000, 2000, 4000, 8000, 4000, 8000, 16000, 32000],
        "retractions": [72, 46, 12, 0, 14, 0, 0, 0],
        "requests": 2000,
    }
)
RESERVES = pd.DataFrame(
    {
        "dcp_size": [1] * 4 + [2] * 4,
        "reserved_decode_tokens": [16, 64, 128, 512] * 2,
        "retractions": [119, 47, 9, 0, 82, 17, 0, 0],
        "budget_gib": 1.0,
    }
)
WAYS = pd.DataFrame(
    {
        "dcp_size": [1, 2, 4] * 2,
        "way": ["backup"] * 3 + ["recompute"] * 3,
        "tokens": [1_764_750, 1_263_248, 0, 324_018, 194_811, 0],
    }
)
TIMES = pd.DataFrame({"times": [0, 1, 2], "requests": [1929, 70, 1]})
LOG = pd.DataFrame(
    {
        "phase": [1, 1, 2],
        "tokens": [1_000_000, 2_000_000, 3_000_000],
        "train_bits_per_byte": [4.0, 2.5, 1.5],
        "held_out_bits_per_byte": [3.0, 2.5, 2.0],
        "recall": [0.0, 0.5, 1.0],
    }
)


@cache
def crashed() -> CrashResult:
    """One silent retraction."""
    return STUDY.run()


def hurt() -> pd.DataFrame:
    """The wrong rows of everybody."""
    result = crashed()
    return pd.concat([result.damaged, result.restored.assign(request=result.victim)])


def census() -> pd.DataFrame:
    """Pages of four DCP sizes."""
    made = [page_census(DcpLayout(c, 4, 64)).assign(dcp_size=c) for c in (1, 2, 4, 8)]
    table = pd.concat(made, ignore_index=True)
    return table.assign(outcome=table["outcome"].mask(table["dcp_size"] == 1, "right"))


@cache
def backed_up() -> BackupWalk:
    """A right backup."""
    return walk_layout(STEPS_LAYOUT, 19)


@cache
def node_run() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Intervals and fill of four requests in a pool of 512 tokens."""
    layout = DcpLayout(4, 4, 32)
    config = NodeConfig(layout, reserved_decode_tokens=16)
    requests = [Request(rid, 0.0, 16, 192) for rid in range(4)]
    table = intervals(CountingNode(config).run(requests, record=True).events)
    return table, pool_fill(table, layout)


@cache
def bench_rows() -> pd.DataFrame:
    """Rows of a made-up benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder))
        return read_costs(Path(folder)).of("cpu")


def captioned(fig: Figure, name: str) -> Figure:
    """An owner figure with its definition."""
    return caption(fig, owners.DEFINITIONS[name], ORIGIN)


VERDICTS = {found.name: "not excluded" for found in DEFECTS}
ATLAS = {f"c = {c}": OwnerStudy(DcpLayout(c, 4, 8), 22) for c in (1, 2, 3, 4, 8, 16)}
FIGURES: dict[str, Callable[[], Figure]] = {
    "owner-slots": lambda: captioned(owners.owner_map(RUN), "owner-slots"),
    "rank-buffers": lambda: captioned(owners.rank_buffers(RUN, 0, raw=True), "rank-buffers"),
    "page-map": lambda: captioned(owners.page_map(RUN), "page-map"),
    "raw-use-map": lambda: captioned(owners.raw_use_map(RUN), "raw-use-map"),
    "owner-atlas": lambda: captioned(owners.owner_atlas(ATLAS, "By DCP size"), "owner-slots"),
    "census": lambda: crash.page_census_figure(census(), ORIGIN),
    "saved": lambda: crash.saved_rows_figure(crashed().saved, crashed().victim, ORIGIN),
    "victim": lambda: crash.victim_rows_figure(crashed().restored.assign(case="before"), ORIGIN),
    "damage": lambda: crash.damage_figure(hurt(), crashed().victim, STUDY.tokens, ORIGIN),
    "steps": lambda: backup_steps_figure(
        backed_up().table(), backed_up().victim, STEPS_LAYOUT, ORIGIN
    ),
    "timeline": lambda: timeline_figure(*node_run(), ORIGIN),
    "dcp": lambda: retraction.retractions_by_dcp_figure(SWEEP, ORIGIN),
    "dcp, single": lambda: retraction.retractions_by_dcp_figure(SWEEP, ORIGIN, "single"),
    "capacity": lambda: retraction.capacity_boundary_figure(SWEEP, 6000, ORIGIN),
    "reserve": lambda: retraction.retractions_by_reserve_figure(RESERVES, ORIGIN),
    "ways": lambda: retraction.backup_or_recompute_figure(WAYS, ORIGIN),
    "times": lambda: retraction.retractions_per_request_figure(TIMES, ORIGIN),
    "drift by dcp": lambda: drift.drift_by_dcp_figure(tables()["summary"], ORIGIN),
    "drift by position": lambda: drift.drift_by_position_figure(tables()["positions"], ORIGIN),
    "drift by request": lambda: drift.drift_by_condition_figure(
        tables()["requests"], ORIGIN, FLOORS
    ),
    "signatures": lambda: drift.signature_figure(tables()["summary"], ORIGIN, VERDICTS),
    "tokens": lambda: tokens_figure(
        tables()["events"], tables()["tokens"], FLOORS["float32"], ORIGIN, run="DCP 4"
    ),
    "loss": lambda: drift.loss_curve_figure(LOG, 0.0625, ORIGIN),
    "localize": lambda: cost.localize_figure(localize_points(bench_rows()), ORIGIN),
    "copies": lambda: cost.copies_figure(copy_points(bench_rows()), ORIGIN),
    "shares": lambda: cost.shares_figure(share_points(bench_rows()), ORIGIN),
}


@cache
def made(name: str) -> Figure:
    """The figure of that name, made once for all tests that only look."""
    return FIGURES[name]()
