"""Pictures of drift: against the DCP size, and along the tokens of a request.

Each function takes a table of the drift study and an origin, and returns a captioned figure.
Drift is |Δℓ|, defined in ``kvlab.lab.drift.METRICS``; its axis has a place for exact zeros.

Worked example: a condition whose tokens are bit-identical to the reference's has max |Δℓ| = 0 and
lies in the grey band below the decades, at every DCP size.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from kvlab.lab.drift import DTYPES, UPSTREAM_TOLERANCE, condition, metric
from kvlab.lab.origin import Origin
from kvlab.viz.drift_scale import (
    LOOKS,
    PQ,
    TOLERANCE_TEXT,
    ZeroLog,
    legend_in,
    panels,
    require_rows,
    tolerance_line,
)
from kvlab.viz.style import BLACK, caption, figure

Width = Literal["single", "double"]
DTYPE_TITLES = {"float32": "float32", "bfloat16": "bfloat16", "fp8": "fp8 rows, bfloat16"}
REFERENCE = (
    "Reference: one rank, no retraction, same dtype, one request a forward; the runs batch, so "
    "rounding differs at DCP 1 too."
)
#: Places with fewer tokens are left out: their percentiles are single requests.
LEAST_TOKENS = 10
ZERO = "The grey band at 0 holds values that are exactly 0: equal bits."


def drift_by_dcp_figure(summary: pd.DataFrame, origin: Origin, width: Width = "double") -> Figure:
    """Largest and mean drift against the DCP size, one line a condition, one panel a dtype.

    ``summary``: condition, dcp_size, dtype, max_abs_dlogprob, mean_abs_dlogprob; conditions without
    a look of their own (the defects) are left out.
    """
    names = ("max_abs_dlogprob", "mean_abs_dlogprob")
    table = summary[summary["condition"].isin(list(LOOKS))]
    table = require_rows(table, ("condition", "dcp_size", "dtype", *names), "drift by DCP size")
    dtypes = [dtype for dtype in DTYPES if (table["dtype"] == dtype).any()]
    scale = ZeroLog.over(table[list(names)].to_numpy(), keep=[UPSTREAM_TOLERANCE])
    sizes = sorted(int(size) for size in table["dcp_size"].unique())
    wide = width == "double"
    shape = (2, len(dtypes)) if wide else (len(dtypes), 2)
    fig = figure(width, height=1.9 * shape[0] + (0.9 if wide else 1.3))
    axes, below = panels(fig, *shape, lines=3 if wide else 6, sharex=True)
    for i, name in enumerate(names):
        for j, dtype in enumerate(dtypes):
            ax = axes[i][j] if wide else axes[j][i]
            _lines_by_dcp(ax, table[table["dtype"] == dtype], name, scale, sizes)
            if i == 0:
                tolerance_line(ax)
            _name_panel(ax, DTYPE_TITLES[dtype], name, wide, i, j, len(dtypes))
    shown = [name for name in LOOKS if (table["condition"] == name).any()]
    handles = [*map(_line, shown), _tolerance()]
    legend_in(below, handles, 2 if wide else 1)
    fig.suptitle("Drift against the DCP size", x=0.01, ha="left")
    words = "; ".join(f"{metric(n).symbol}: {metric(n).definition}" for n in names)
    return caption(
        fig,
        f"|Δℓ|: {metric('abs_dlogprob').definition}, in nats; {PQ}. {words}. {REFERENCE} {ZERO} "
        f"{_not_run(table, shown, dtypes)}Measured; the dotted line is reported.",
        origin,
    )


def drift_by_position_figure(
    positions: pd.DataFrame,
    origin: Origin,
    *,
    dtype: str = "float32",
    dcp_sizes: Sequence[int] = (1, 4),
    conditions: Sequence[str] = ("forced_fixed", "forced_before_fix"),
    width: Width = "double",
) -> Figure:
    """Median, 90th percentile and largest drift along the output, and along the tokens since a
    restore, with and without the fix.

    ``positions``: condition, dcp_size, dtype, axis ("position" or "since_restore"), at, tokens,
    p50, p90, max. Places of fewer than ``LEAST_TOKENS`` tokens are left out, where others have as
    many.
    """
    needed = ("condition", "dcp_size", "dtype", "axis", "at", "tokens", "p50", "p90", "max")
    require_rows(positions, needed, "drift by position")
    mine = positions["dtype"].eq(dtype) & positions["condition"].isin(list(conditions))
    table = positions[mine & positions["dcp_size"].isin(list(dcp_sizes))]
    require_rows(table, needed, "drift by position")
    least = min(LEAST_TOKENS, int(table["tokens"].max()))
    table = table[table["tokens"] >= least]
    scale = ZeroLog.over(table[["p50", "p90", "max"]].to_numpy(), keep=[UPSTREAM_TOLERANCE])
    kinds = [("position", "output position (tokens)"),
             ("since_restore", "tokens since the request came back")]  # fmt: skip
    cells = [(kind, label, size) for kind, label in kinds for size in dcp_sizes]
    wide = width == "double"
    shape = (2, len(dcp_sizes)) if wide else (len(cells), 1)
    fig = figure(width, height=1.75 * shape[0] + (0.9 if wide else 1.3))
    axes, below = panels(fig, *shape, lines=3 if wide else 5)
    for ax, (kind, label, size) in zip(chain(*axes), cells, strict=True):
        here = table[table["axis"].eq(kind) & table["dcp_size"].eq(size)]
        for name in conditions:
            _bands(ax, here[here["condition"] == name].sort_values("at"), name, scale)
        scale.draw(ax)
        tolerance_line(ax)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel(label)
        ax.set_title(f"DCP {size}", fontsize=8.5)
        if not wide or size == dcp_sizes[0]:
            ax.set_ylabel("|Δℓ| (nats)")
    grey = [Patch(fc="#888888", alpha=a, label=words)
            for a, words in ((0.55, "median to p90"), (0.25, "p90 to max"))]  # fmt: skip
    handles = [*(_line(name, marker="") for name in conditions), *grey, _tolerance()]
    legend_in(below, handles, 2 if wide else 1)
    fig.suptitle(f"Drift along a request ({DTYPE_TITLES[dtype]})", x=0.01, ha="left")
    return caption(
        fig,
        f"|Δℓ|: {metric('abs_dlogprob').definition}, in nats, over all requests; {PQ}. Line: "
        "median, dark: up to the 90th percentile, light: up to the largest, at places with at "
        f"least {least} tokens. {REFERENCE} {ZERO} Measured; the dotted line is reported.",
        origin,
    )


def _not_run(table: pd.DataFrame, shown: Sequence[str], dtypes: Sequence[str]) -> str:
    """A sentence that names the lines that a panel lacks, or nothing."""
    lacks = []
    for dtype in dtypes:
        there = set(table.loc[table["dtype"] == dtype, "condition"])
        names = [f"'{condition(name).title}'" for name in shown if name not in there]
        lacks += [f"{', '.join(names)} in {dtype}"] if names else []
    return f"Not run: {'; '.join(lacks)}. " if lacks else ""


def _lines_by_dcp(
    ax: Axes, table: pd.DataFrame, name: str, scale: ZeroLog, sizes: list[int]
) -> None:
    shown = [known for known in LOOKS if (table["condition"] == known).any()]
    for at, known in enumerate(shown):
        rows = table[table["condition"] == known].sort_values("dcp_size")
        look = LOOKS[known]
        # Points of one DCP size stand side by side: equal values, zeros above all, stay countable.
        aside = 2.0 ** (0.13 * (at - (len(shown) - 1) / 2))
        ax.plot(rows["dcp_size"] * aside, scale.place(rows[name]), color=look.color, ls=look.dash,
                marker=look.marker, label=known, lw=1.1, mec="#FFFFFF", mew=0.4,
                ms=5.5)  # fmt: skip
    scale.draw(ax)
    ax.set_xscale("log", base=2)
    ax.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())


def _name_panel(ax: Axes, title: str, name: str, wide: bool, i: int, j: int, dtypes: int) -> None:
    label = f"{metric(name).symbol} ({metric(name).unit})"
    if wide:
        if i == 0:
            ax.set_title(title, fontsize=8.5)
        if j == 0:
            ax.set_ylabel(label)
        if i == 1:
            ax.set_xlabel("DCP size c")
        return
    ax.set_title(f"{title.split()[0]}: {('largest', 'mean')[i]}", fontsize=8.5)
    if i == 0:
        ax.set_ylabel("|Δℓ| (nats)")
    if j == dtypes - 1:
        ax.set_xlabel("DCP size c")


def _bands(ax: Axes, rows: pd.DataFrame, name: str, scale: ZeroLog) -> None:
    if rows.empty:
        return
    look = LOOKS[name]
    low, middle, top = (scale.place(rows[column]) for column in ("p50", "p90", "max"))
    ax.fill_between(rows["at"], low, middle, color=look.color, alpha=0.45, lw=0)
    ax.fill_between(rows["at"], middle, top, color=look.color, alpha=0.18, lw=0)
    marker = look.marker if len(rows) == 1 else ""
    ax.plot(rows["at"], low, color=look.color, ls=look.dash, marker=marker, label=name, lw=1.6)


def _line(name: str, marker: str | None = None) -> Line2D:
    look = LOOKS[name]
    return Line2D([], [], color=look.color, ls=look.dash, mec="#FFFFFF", mew=0.4, ms=5.5, lw=1.3,
                  marker=look.marker if marker is None else marker,
                  label=condition(name).title)  # fmt: skip


def _tolerance() -> Line2D:
    return Line2D([], [], color=BLACK, ls=(0, (1, 1)), lw=1.0, marker="", label=TOLERANCE_TEXT)
