"""Pictures of drift: by DCP size, along a request, by condition, and the signatures of defects.

Each function takes a table of the drift study and an origin, and returns a captioned figure. Drift
is |Δℓ|, defined in ``kvlab.lab.drift.METRICS``. It spans seven decades, and the two values that say
most are on none of them: a drift of exactly 0 (the same bits came out) and NaN. So zeros stand in a
gray band below the lowest decade, NaN in one above the highest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from kvlab.lab.drift import (
    DTYPES,
    PREFIX,
    REPORTED,
    UPSTREAM_TOLERANCE,
    condition,
    defect,
    metric,
)
from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.style import Stroke, ZeroLog, caption, doubling_axis, figure, legend_in

LOOKS: Mapping[str, Stroke] = {
    "no_retraction": Stroke(style.DARK_GRAY, ":", "s"),
    "forced_fixed": Stroke(style.BLUE, "-", "o"),
    "forced_before_fix": Stroke(style.VERMILLION, "--", "X"),
    "natural": Stroke(style.GREEN, "-.", "^"),
    "recompute": Stroke(style.PURPLE, (0, (5, 1, 1, 1, 1, 1)), "D"),
}
DTYPE_TITLES = {"float32": "float32", "bfloat16": "bfloat16", "fp8": "fp8 rows, bfloat16"}
#: DCP sizes of the figures that show two side by side.
SIZES = (1, 4)
LEGEND_LINE_IN = 0.19
# Hinting makes a word at 200 dpi up to a tenth wider than at the 100 dpi of the layout: long labels
# would leave the page.
ROOM_IN = 0.16
#: What the letters of a definition stand for.
PQ = "p: next-token distribution of the reference, q: that of the run"
REFERENCE = (
    "Reference: one rank, no retraction, same dtype, one request a forward; the runs batch, so "
    "rounding differs at DCP 1 too."
)
ZERO = "The gray band at 0 holds values that are exactly 0: equal bits."
TOLERANCE_TEXT = f"{UPSTREAM_TOLERANCE:.2f}: tolerance of the upstream PD test (reported)"
TOLERANCE_LOOK: Mapping[str, Any] = {"color": style.BLACK, "ls": (0, (1, 1)), "lw": 1.0}
MARK_LOOK: Mapping[str, Any] = {"mec": style.WHITE, "mew": 0.4, "ms": 5.5}

#: Places with fewer tokens are left out: their percentiles are single requests.
LEAST_TOKENS = 10
ALONG = {
    "position": "output position (tokens)",
    "since_restore": "tokens since the request came back",
}
#: Of the same run under two names, the one that is left out.
TWIN, KEPT = "defect:widened_as_rows", "forced_before_fix"
REQUEST_ROW_IN, SPREAD = 0.25, 0.17

SIGN_ROW_IN, HEAD_PT, NOT_THERE, BASELINE = 0.235, 6.2, "–", "forced_fixed"
SHARE = f"{REPORTED[0]} of {REPORTED[1]}"


def drift_by_dcp_figure(summary: pd.DataFrame, origin: Origin) -> Figure:
    """Largest and mean drift against the DCP size, one line a condition, one panel a dtype.

    ``summary``: condition, dcp_size, dtype, max_abs_dlogprob, mean_abs_dlogprob; conditions without
    a look of their own (the defects) are left out.
    """
    names = ("max_abs_dlogprob", "mean_abs_dlogprob")
    table = summary[summary["condition"].isin(list(LOOKS))]
    shown = [name for name in LOOKS if (table["condition"] == name).any()]
    dtypes = [dtype for dtype in DTYPES if (table["dtype"] == dtype).any()]
    scale = ZeroLog.over(table[list(names)].to_numpy(), keep=[UPSTREAM_TOLERANCE])
    sizes = sorted(int(size) for size in table["dcp_size"].unique())
    fig = figure("double", height=4.7)
    axes, below = _panels(fig, len(dtypes), lines=3, sharex=True)
    for row, name in zip(axes, names, strict=True):
        row[0].set_ylabel(f"{metric(name).symbol} ({metric(name).unit})")
        for ax, dtype in zip(row, dtypes, strict=True):
            _lines_by_dcp(ax, table[table["dtype"] == dtype], name, scale)
            label = "DCP size c" if row is axes[1] else ""
            doubling_axis(ax, sizes, label, [str(size) for size in sizes])
            ax.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    for ax, dtype in zip(axes[0], dtypes, strict=True):
        ax.set_title(DTYPE_TITLES[dtype], fontsize=8.5)
    legend_in(below, [*map(_line, shown), _tolerance()], 2)
    fig.suptitle("Drift against the DCP size", x=0.01, ha="left")
    words = "; ".join(f"{metric(n).symbol}: {metric(n).definition}" for n in names)
    return caption(
        fig,
        f"|Δℓ|: {metric('abs_dlogprob').definition}, in nats; {PQ}. {words}. {REFERENCE} {ZERO} "
        f"{_not_run(table, shown, dtypes)}Measured; the dotted line is reported.",
        origin,
    )


def _lines_by_dcp(ax: Axes, table: pd.DataFrame, name: str, scale: ZeroLog) -> None:
    shown = [known for known in LOOKS if (table["condition"] == known).any()]
    for at, known in enumerate(shown):
        rows = table[table["condition"] == known].sort_values("dcp_size")
        look = LOOKS[known]
        # Points of one DCP size stand side by side: equal values, zeros above all, stay countable.
        aside = 2.0 ** (0.13 * (at - (len(shown) - 1) / 2))
        ax.plot(rows["dcp_size"] * aside, scale.place(rows[name]), color=look.color, ls=look.dash,
                marker=look.marker, label=known, lw=1.1, **MARK_LOOK)  # fmt: skip
    scale.draw(ax)
    ax.axhline(UPSTREAM_TOLERANCE, zorder=1, **TOLERANCE_LOOK)


def _not_run(table: pd.DataFrame, shown: Sequence[str], dtypes: Sequence[str]) -> str:
    """A sentence that names the lines that a panel lacks, or nothing."""
    lacks = []
    for dtype in dtypes:
        there = set(table.loc[table["dtype"] == dtype, "condition"])
        names = [f"'{condition(name).title}'" for name in shown if name not in there]
        lacks += [f"{', '.join(names)} in {dtype}"] if names else []
    return f"Not run: {'; '.join(lacks)}. " if lacks else ""


def drift_by_position_figure(positions: pd.DataFrame, origin: Origin) -> Figure:
    """Median, 90th percentile and largest drift along the output, and along the tokens since a
    restore, with and without the fix, in float32.

    ``positions``: condition, dcp_size, dtype, axis ("position" or "since_restore"), at, tokens,
    p50, p90, max. Places of fewer than ``LEAST_TOKENS`` tokens are left out, where others have as
    many.
    """
    conditions = ("forced_fixed", "forced_before_fix")
    mine = positions["dtype"].eq("float32") & positions["condition"].isin(list(conditions))
    table = positions[mine & positions["dcp_size"].isin(list(SIZES))]
    least = min(LEAST_TOKENS, int(table["tokens"].max()))
    table = table[table["tokens"] >= least]
    scale = ZeroLog.over(table[["p50", "p90", "max"]].to_numpy(), keep=[UPSTREAM_TOLERANCE])
    cells = [(kind, label, size) for kind, label in ALONG.items() for size in SIZES]
    fig = figure("double", height=4.4)
    axes, below = _panels(fig, len(SIZES), lines=3)
    for ax, (kind, label, size) in zip(chain(*axes), cells, strict=True):
        here = table[table["axis"].eq(kind) & table["dcp_size"].eq(size)]
        for name in conditions:
            _bands(ax, here[here["condition"] == name].sort_values("at"), name, scale)
        scale.draw(ax)
        ax.axhline(UPSTREAM_TOLERANCE, zorder=1, **TOLERANCE_LOOK)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_xlabel(label)
        ax.set_title(f"DCP {size}", fontsize=8.5)
        if size == SIZES[0]:
            ax.set_ylabel("|Δℓ| (nats)")
    gray = [Patch(fc="#888888", alpha=a, label=words)
            for a, words in ((0.55, "median to p90"), (0.25, "p90 to max"))]  # fmt: skip
    lines = [_line(name, marker="") for name in conditions]
    legend_in(below, [*lines, *gray, _tolerance()], 2)
    fig.suptitle("Drift along a request (float32)", x=0.01, ha="left")
    return caption(
        fig,
        f"|Δℓ|: {metric('abs_dlogprob').definition}, in nats, over all requests; {PQ}. Line: "
        "median, dark: up to the 90th percentile, light: up to the largest, at places with at "
        f"least {least} tokens. {REFERENCE} {ZERO} Measured; the dotted line is reported.",
        origin,
    )


def _bands(ax: Axes, rows: pd.DataFrame, name: str, scale: ZeroLog) -> None:
    look = LOOKS[name]
    low, middle, top = (scale.place(rows[column]) for column in ("p50", "p90", "max"))
    ax.fill_between(rows["at"], low, middle, color=look.color, alpha=0.45, lw=0)
    ax.fill_between(rows["at"], middle, top, color=look.color, alpha=0.18, lw=0)
    marker = look.marker if len(rows) == 1 else ""
    ax.plot(rows["at"], low, color=look.color, ls=look.dash, marker=marker, label=name, lw=1.6)


def drift_by_condition_figure(
    requests: pd.DataFrame, origin: Origin, floors: Mapping[str, float]
) -> Figure:
    """One line a condition, one mark a request at its largest |Δℓ|; one panel a DCP size.

    A mean hides what a user meets: four bad requests of 48 are a mean near the floor. So every
    request is drawn, those that were restored apart from the others, and a bar marks the median.

    Args:
        requests: condition, dcp_size, dtype, rid, restored_at, max_abs_dlogprob, nan_tokens. Each
            condition is drawn in float32, or in the first dtype that it has, which its name then
            says.
        floors: ε of each dtype, nats (column ``floor`` of the summary), a tick in each line.
    """
    table = requests[requests["dcp_size"].isin(list(SIZES))]
    dtypes = _dtypes(table)
    both = {TWIN, KEPT} <= set(dtypes)  # one run is one line
    shown = [(name, dtype) for name, dtype in dtypes.items() if not both or name != TWIN]
    worst = table["max_abs_dlogprob"].mask(table["nan_tokens"] > 0)
    table = table.assign(worst=worst)
    scale = ZeroLog.over(worst.to_numpy(), keep=[UPSTREAM_TOLERANCE])
    rows_in, below_in = 0.5 + REQUEST_ROW_IN * len(shown), 3 * LEGEND_LINE_IN
    fig = figure("double", rows_in + 0.55 + below_in, beside=ROOM_IN)
    grid = fig.add_gridspec(2, len(SIZES), height_ratios=[rows_in, below_in])
    for j, size in enumerate(SIZES):
        ax = fig.add_subplot(grid[0, j])
        for y, (name, dtype) in enumerate(shown):
            here = table["condition"].eq(name) & table["dtype"].eq(dtype)
            _request_line(ax, y, table[here & table["dcp_size"].eq(size)], scale)
            at = float(scale.place(floors[dtype]))
            ax.vlines(at, y - 0.5, y + 0.5, color=style.GREEN, lw=1.0, label=f"floor {name}")
        scale.draw(ax, "x", most=6)
        ax.axvline(UPSTREAM_TOLERANCE, zorder=1, **TOLERANCE_LOOK)
        ax.set(ylim=(len(shown) - 0.4, -0.6), xlabel="max |Δℓ| of a request (nats)")
        ax.set_title(f"DCP {size}", fontsize=8.5)
        names = [condition(name).title + _in(dtype) for name, dtype in shown]
        ax.set_yticks(range(len(shown)), names, fontsize=7.5)
        ax.tick_params(axis="y", length=0, labelleft=j == 0)
    legend_in(fig.add_subplot(grid[1, :]), _request_keys(), 2)
    fig.suptitle("The worst token of each request", x=0.01, ha="left")
    title = condition(TWIN).title
    twin = f" {title[0].upper()}{title[1:]}: the run named '{condition(KEPT).title}'."
    return caption(
        fig,
        f"max |Δℓ|: {metric('max_abs_dlogprob').definition}, of one request; |Δℓ|: "
        f"{metric('abs_dlogprob').definition}, in nats; {PQ}. Reference: one rank, no "
        "retraction, same dtype. The band at 0 holds requests with equal bits, that at NaN those "
        f"with a token that has no logprob.{twin if both else ''} Measured; the dotted line is "
        "reported.",
        origin,
    )


def _dtypes(table: pd.DataFrame) -> dict[str, str]:
    """The first dtype of each condition, in the order of the table."""
    has = table.groupby("condition", sort=False)["dtype"].agg(set)
    return {str(name): next(d for d in DTYPES if d in there) for name, there in has.items()}


def _request_line(ax: Axes, y: int, mine: pd.DataFrame, scale: ZeroLog) -> None:
    """The requests of one condition at height ``y``, and their median."""
    if mine.empty:
        return
    if y % 2:
        ax.axhspan(y - 0.5, y + 0.5, fc="#F6F6F6", ec="none", zorder=-1)
    back = mine["restored_at"].notna()
    for rows, side, marker, fill, edge in (
        (mine[back], -1, "D", style.ORANGE, "#5A3D00"),
        (mine[~back], 1, "o", "none", style.BLUE),
    ):
        # A place by rid, the same in each condition: marks of one request can be followed.
        heights = y + side * (0.05 + SPREAD * (rows["rid"] * 0.618 % 1))
        ax.plot(scale.place(rows["worst"]), heights, ls="", marker=marker, mfc=fill, mec=edge,
                ms=2.8, mew=0.5, zorder=3)  # fmt: skip
    values = np.sort(scale.place(mine["worst"]))
    ax.vlines(
        values[(len(values) - 1) // 2], y - 0.36, y + 0.36, color=style.BLACK, lw=1.6, zorder=4
    )


def _request_keys() -> list[Line2D]:
    def mark(label: str, marker: str, color: str, **look: Any) -> Line2D:
        return Line2D([], [], ls="", label=label, marker=marker, color=color, **look)

    return [
        mark("restored", "D", style.ORANGE, mec="#5A3D00", ms=4.0, mew=0.6),
        mark("never restored", "o", style.BLUE, mfc="none", ms=4.0, mew=0.6),
        mark("median request", "|", style.BLACK, ms=9, mew=1.6),
        mark("noise floor ε of the dtype", "|", style.GREEN, ms=11, mew=1.0),
        _tolerance(),
    ]


#: Columns: head, the count, and the whole of its share; without a whole, no bar.
SIGNS = (
    ("acts", "max_from_fixed", ""),
    ("drift", "drifting_restored", "restored_requests"),
    ("repeat", "repeating_restored", "restored_requests"),
    ("others\nhurt", "collateral_requests", "requests"),
    ("NaN\nshare", "nan_tokens", "tokens"),
    ("onset,\ntokens", "median_onset", ""),
)


def signature_figure(summary: pd.DataFrame, origin: Origin, verdicts: Mapping[str, str]) -> Figure:
    """A line a defect, a column a measured sign, for one rank and for several; the first line is
    the run with the fix and no defect.

    A cell holds the number, and a bar behind it as long as its share: 12 of 40 restored requests
    that drift are "12/40" over a bar of three tenths.

    Args:
        summary: the table of that name; each defect in float32, or the first dtype that it has.
        verdicts: by name of a defect, the judgement of ``answers`` for the last column.
    """
    table = summary[summary["dcp_size"].isin(list(SIZES))]
    names = [n for n in dict.fromkeys(table["condition"]) if n.startswith(PREFIX)]
    lines = [*([BASELINE] if (table["condition"] == BASELINE).any() else []), *names]
    order = table["dtype"].map(list(DTYPES).index)
    first = table.loc[order.sort_values(kind="stable").index]
    first = first.drop_duplicates(["condition", "dcp_size"])
    rows: Any = {(row["condition"], row["dcp_size"]): row for row in first.to_dict("records")}
    fig = figure("double", 0.95 + SIGN_ROW_IN * len(lines), beside=ROOM_IN)
    ax = fig.subplots()
    gap = 0.5
    for block, size in enumerate(SIZES):
        left = block * (len(SIGNS) + gap)
        ax.text(left, -1.95, f"DCP {size}", fontsize=8.5, fontweight="bold", va="bottom")
        ax.text(left + 2, -1.12, "restored that", fontsize=HEAD_PT, ha="center", va="bottom")
        for j, (head, count, whole) in enumerate(SIGNS):
            ax.text(left + j + 0.5, -0.62, head, fontsize=HEAD_PT, ha="center", va="bottom")
            for y, name in enumerate(lines):
                _cell(ax, left + j, y, *_sign(rows.get((name, size), {}), count, whole))
    right = len(SIZES) * (len(SIGNS) + gap) - gap + 0.3
    head = f"makes {SHARE}\nrepeat at c = 1?"
    ax.text(right, -0.62, head, fontsize=HEAD_PT, va="bottom")
    for y, name in enumerate(lines):
        ax.text(right, y, verdicts.get(name.removeprefix(PREFIX), ""), fontsize=6.8, va="center")
    ax.set(xlim=(-0.1, right + 2.3), ylim=(len(lines) - 0.4, -2.2), xticks=[])
    dtypes = _dtypes(table)
    names = [_defect_title(name, dtypes[name]) for name in lines]
    ax.set_yticks(range(len(lines)), names, fontsize=7.5)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    fig.suptitle("Signatures of the defects", x=0.01, ha="left")
    text = (
        "Acts: a dot if any logprob differs from that of the same schedule without the "
        "defect. Restored that drift: requests with a |Δℓ| above 2 ε after they came back, of "
        "those that came back. Restored that repeat: ρ at least 0.25 above the reference's. "
        "Others hurt: requests that drift before they were ever restored, of all. NaN share: of "
        "all tokens. Onset: median of the tokens from the return to the first |Δℓ| above 2 ε. "
        "* hypothetical: no thread reports it. Measured. Last column, from the signs at c = 1: "
        "cannot: no bit changes, or too few drift; too many: nearly all that drift repeat, and "
        f"more than {SHARE}; not excluded: all others. {SHARE} is reported."
    )
    return caption(fig, text, origin)


def _defect_title(name: str, dtype: str) -> str:
    if name == BASELINE:
        return "none: with the fix"
    star = "*" if defect(name.removeprefix(PREFIX)).hypothetical else ""
    return condition(name).title + star + _in(dtype)


def _in(dtype: str) -> str:
    return "" if dtype == "float32" else f" ({dtype})"


def _sign(row: dict[str, Any], count: str, whole: str) -> tuple[str, float | None]:
    """Text of a cell, and the share of its bar."""
    value = row.get(count)
    if value is None or (pd.isna(value) and count == "median_onset"):
        return NOT_THERE, None
    if count == "max_from_fixed":
        # NaN against a number has no distance, and is a change.
        changed = pd.isna(value) or value > 0 or row["nan_tokens"] > 0
        return ("●" if changed else NOT_THERE), None
    if pd.isna(value) or not whole:
        return ("" if pd.isna(value) else f"{value:g}"), None
    if row[whole] == 0:
        return NOT_THERE, None
    share = float(value / row[whole])
    if count == "nan_tokens":  # of hundreds or thousands: too long as a fraction
        return f"{share:.0%}", share
    return f"{int(value)}/{int(row[whole])}", share


def _cell(ax: Axes, x: float, y: float, text: str, share: float | None) -> None:
    if share is not None:
        ax.add_patch(Rectangle((x + 0.04, y - 0.4), 0.92 * share, 0.8, fc=style.SKY, ec="none"))
        ax.add_patch(
            Rectangle((x + 0.04, y - 0.4), 0.92, 0.8, fc="none", ec=style.LIGHT_GRAY, lw=0.5)
        )
    color = style.DARK_GRAY if text == NOT_THERE or (share == 0) else style.BLACK
    ax.text(x + 0.5, y, text, ha="center", va="center", fontsize=HEAD_PT, color=color)


def loss_curve_figure(log: pd.DataFrame, chance: float, origin: Origin) -> Figure:
    """Two panels of the training of the tiny model: loss and recall, against the bytes seen.

    A gray line stands before the first point of each later phase: its batches are another text.

    ``log``: the lines of a training (``phase``, ``tokens``, ``train_bits_per_byte``,
    ``held_out_bits_per_byte``, ``recall``); ``chance``: of a value byte, 0 to 1.
    """
    fig = figure("double", height=2.6)
    left, right = fig.subplots(1, 2)
    seen = log["tokens"] / 1e6
    points = list(zip(log["phase"].tolist(), seen.tolist(), strict=True))
    for before, after in pairwise(points):
        for ax in (left, right) if before[0] != after[0] else ():
            ax.axvline((before[1] + after[1]) / 2, color=style.LIGHT_GRAY, lw=1, zorder=0)
    left.plot(seen, log["train_bits_per_byte"], "--s", color=style.ORANGE, label="training batches")
    left.plot(seen, log["held_out_bits_per_byte"], "-o", color=style.BLUE, label="held-out text")
    left.set(xlabel="bytes seen (millions)", ylabel="bits a byte", xlim=(0, None), ylim=(0, None))
    left.set_title("Loss")
    left.legend(loc="lower left")
    right.plot(seen, log["recall"], "-o", color=style.BLUE)
    right.axhline(chance, color=style.VERMILLION, ls="--", lw=1)
    right.annotate(
        f"chance {chance:.4g}", (1, chance), (-2, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", color=style.DARK_GRAY, fontsize=8,
    )  # fmt: skip
    right.set(xlabel="bytes seen (millions)", ylabel="share right", xlim=(0, None), ylim=(0, 1.02))
    right.set_title("Recall of value bytes")
    fig.suptitle("Training of the tiny model", x=0.01, ha="left")
    return caption(
        fig,
        "Bits a byte: mean cross-entropy of the next byte, base 2; training: mean over the steps "
        "since the point before, held-out: 16 windows of files that training never saw. Recall: "
        "share of the value bytes after a get that the model ranks first, over 8 sequences of "
        "held-out text with 12 pairs. Gray lines: phases of the training begin, with more pairs, "
        "farther away. Measured.",
        origin,
    )


def origin_of(told: Mapping[str, Any]) -> Origin:
    """The origin of a recorded study (``Study.origin``), for a footer: of the parameters only three
    are kept, since its lists are longer than a figure is wide."""
    facts = {field.name: told[field.name] for field in fields(Origin)}
    kept = {key: told["parameters"][key] for key in ("model", "model_sha256", "requests")}
    return Origin(**{**facts, "parameters": kept})


def _panels(
    fig: Figure, cols: int, lines: int, sharex: bool = False
) -> tuple[list[list[Axes]], Axes]:
    """Two rows of axes with one vertical scale, and below them, ``lines`` of text high, axes
    without a frame for the legend, which thus takes room from no column."""
    legend = lines * LEGEND_LINE_IN
    each = (float(fig.get_figheight()) - legend) / 2
    grid = fig.add_gridspec(3, cols, height_ratios=[each, each, legend])
    axes: list[list[Axes]] = [[], []]
    for i, j in np.ndindex(2, cols):
        first = axes[0][0] if i or j else None
        ax = fig.add_subplot(grid[i, j], sharey=first, sharex=axes[0][j] if sharex and i else None)
        ax.tick_params(labelleft=j == 0, labelbottom=not sharex or i == 1)
        axes[i].append(ax)
    return axes, fig.add_subplot(grid[2, :])


def _line(name: str, marker: str | None = None) -> Line2D:
    look = LOOKS[name]
    marker = look.marker if marker is None else marker
    title = condition(name).title
    return Line2D([], [], color=look.color, ls=look.dash, lw=1.3, marker=marker, label=title,
                  **MARK_LOOK)  # fmt: skip


def _tolerance() -> Line2D:
    return Line2D([], [], marker="", label=TOLERANCE_TEXT, **TOLERANCE_LOOK)
