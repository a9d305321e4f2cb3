"""Pictures of the crash: which pages fail, whose rows were saved, what is lost, who is hurt.

Each function takes a table that a study made and an origin, and returns a captioned figure; what is
counted here is only what a label says.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.style import Role, caption, figure, legend_below

Value = TypeVar("Value", bound=Hashable)

#: What a page's slots hit when they are used as rows. "right" is DCP 1: slot and row are one.
OUTCOMES: Mapping[str, Role] = {
    "right": replace(style.OWNED, label="right: slot and row are one number"),
    "silent": replace(style.SILENT, label="silent: rows of other tokens"),
    "straddling": style.STRADDLING,
    "out_of_range": replace(style.ASSERT, label="out of range: error or assert"),
}
#: What a position of a request holds after a restore.
VERDICTS: Mapping[str, Role] = {
    "right": replace(style.OWNED, label="right"),
    "another token": replace(style.WRONG, label="another token"),
    "not restored": replace(style.PADDING, label="not restored"),
}
VICTIM = replace(style.OWNED, label="the victim's, of other positions")
NOBODY = replace(style.PADDING, label="no token")
# Neighbors take turns, so that the border between two requests shows; the label names them.
NEIGHBORS = (
    replace(style.OTHER, label="another request's"),
    replace(style.OTHER, color=style.SKY, label="the next request's"),
)


def page_census_figure(census: pd.DataFrame, origin: Origin) -> Figure:
    """One strip a DCP size: every page of the pool by what raw use of its slots would do.

    ``census``: dcp_size, page, outcome (a key of ``OUTCOMES``), all sizes with the same pages.
    """
    sizes = sorted(census["dcp_size"].unique())
    fig = figure("double", height=0.8 + 0.34 * len(sizes))
    ax = fig.subplots()
    for y, size in enumerate(sizes):
        pages = census[census["dcp_size"] == size].sort_values("page")
        runs = spans(pages["outcome"])
        first = int(pages["page"].iloc[0])
        for begin, end, kind in runs:
            _box(ax, first + begin, y, end - begin, OUTCOMES[kind])
            if kind == "straddling":  # one page of a thousand: thinner than a line
                ax.plot(
                    first + begin, y - 0.48, "v", color=style.STRADDLING.color, ms=4, clip_on=False
                )
        counts = pages["outcome"].value_counts()
        told = " · ".join(str(counts[kind]) for kind in OUTCOMES if kind in counts)
        ax.text(1.01, y, told, va="center", transform=ax.get_yaxis_transform(), fontsize=8)
    pages = census["page"]
    _frame(ax, sizes, "DCP ", (int(pages.min()), int(pages.max()) + 1), "page of the allocator")
    ax.set_title("Which pages fail loudly, and which fail silently, when slots are used as rows")
    seen = [role for kind, role in OUTCOMES.items() if (census["outcome"] == kind).any()]
    legend_below(ax, _patches(seen), ncols=2)
    return caption(
        fig,
        "Outcome of a page: silent if all its slots are below the number of rows of a rank's "
        "buffer, out of range if none is, straddling (triangle) if some are. Unit: pages; the "
        "counts at the right are in the order of the legend. Computed from the layout.",
        origin,
    )


def saved_rows_figure(saved: pd.DataFrame, victim: int, origin: Origin) -> Figure:
    """One strip a rank: for each row that it saved, the request that the row belonged to.

    ``saved``: rank, holds_request (-1: no token), in the order in which a rank saved its rows.
    """
    ranks = sorted(saved["rank"].unique())
    fig = figure("double", height=0.8 + 0.34 * len(ranks))
    ax = fig.subplots()
    most = 0
    for y, rank in enumerate(ranks):
        runs = spans(saved.loc[saved["rank"] == rank, "holds_request"])
        most = max(most, runs[-1][1])
        for begin, end, request in runs:
            role = _holder(int(request), victim)
            _box(ax, begin, y, end - begin, role)
            if end - begin > 0.06 * len(saved) / len(ranks):
                text = "nobody" if request < 0 else f"request {request}"
                ax.text((begin + end) / 2, y, text, ha="center", va="center", fontsize=7,
                        color=role.ink)  # fmt: skip
    _frame(ax, ranks, "rank ", (0, most), f"saved row, by position of the victim, request {victim}")
    ax.set_title(f"Backing up request {victim} with slots as rows saves the rows of others")
    legend_below(ax, _patches([VICTIM, *NEIGHBORS, NOBODY]), ncols=4)
    return caption(
        fig,
        "Each rank saved one row for every position of the victim; drawn is the request whose "
        "token the row held, read from the fingerprint in the row. A right backup saves on each "
        "rank only the positions that it owns.",
        origin,
    )


def victim_rows_figure(cases: pd.DataFrame, origin: Origin) -> Figure:
    """One panel a case, one strip a rank: the victim's positions after the restore.

    ``cases``: case, rank, position, verdict (a key of ``VERDICTS``); cases in order of appearance.
    """
    names = list(cases["case"].unique())
    ranks = sorted(cases["rank"].unique())
    fig = figure("double", height=0.6 + len(names) * (0.4 + 0.2 * len(ranks)))
    axes = fig.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for ax, name in zip(axes, names, strict=True):
        here = cases[cases["case"] == name]
        for y, rank in enumerate(ranks):
            mine = here[here["rank"] == rank].sort_values("position")
            turns = (mine["position"] - rank).tolist()  # a position is drawn as wide as its turn
            for begin, end, verdict in spans(mine["verdict"]):
                wide = turns[end - 1] + len(ranks) - turns[begin]
                _box(ax, turns[begin], y, wide, VERDICTS[verdict])
        wrong = int((here["verdict"] != "right").sum())
        ax.set_title(f"{name}: {wrong} of {len(here)} positions are not right", fontsize=8.5)
        _frame(ax, ranks, "rank ", (0, int(cases["position"].max()) + len(ranks)), "")
    axes[-1].set_xlabel("position of the victim")
    fig.suptitle("What the victim holds after the restore", x=0.01, ha="left")
    seen = [role for kind, role in VERDICTS.items() if (cases["verdict"] == kind).any()]
    legend_below(axes[-1], _patches(seen), ncols=3)
    return caption(
        fig,
        "A position is right if the row of its slot on its owner holds the victim's token of that "
        "position, not restored if the row holds no token, another token otherwise. A rank keeps "
        "every c-th position.",
        origin,
    )


def damage_figure(rows: pd.DataFrame, victim: int, tokens: int, origin: Origin) -> Figure:
    """One bar a request with wrong rows: how many of its ``tokens`` positions, and how wrong.

    ``rows``: request, verdict, one row a position that is not right.
    """
    counts = rows.groupby(["request", "verdict"]).size().unstack(fill_value=0)
    fig = figure("double", height=0.9 + 0.24 * len(counts))
    ax = fig.subplots()
    kinds = [kind for kind in VERDICTS if kind in counts and kind != "right"]
    for y, (request, row) in enumerate(counts.iterrows()):
        begin = 0
        for kind in kinds:
            _box(ax, begin, y, int(row[kind]), VERDICTS[kind])
            begin += int(row[kind])
        bold = "bold" if request == victim else "normal"
        ax.text(begin + tokens * 0.01, y, str(begin), va="center", fontsize=8, fontweight=bold)
    names = [f"{r} (victim)" if r == victim else str(r) for r in counts.index]
    _frame(ax, names, "", (0, round(tokens * 1.08)), f"positions that are wrong, of {tokens} each")
    ax.set_ylabel("request")
    ax.set_title("One silent retraction, and the requests that it damaged")
    legend_below(ax, _patches([VERDICTS[kind] for kind in kinds]), ncols=3)
    return caption(
        fig,
        "Positions of running requests whose row does not hold their own token after the restore "
        "of the victim. Requests without a wrong row are not shown. Unit: positions.",
        origin,
    )


def spans(values: Iterable[Value]) -> list[tuple[int, int, Value]]:
    """(begin, end, value) of each run of equal values, end excluded.

    A run is one rectangle, so that a pool of a thousand pages stays a small file.

    >>> spans(["right", "right", "lost"])
    [(0, 2, 'right'), (2, 3, 'lost')]
    """
    found: list[tuple[int, int, Value]] = []
    begin = 0
    for value, run in groupby(values):
        end = begin + len(list(run))
        found.append((begin, end, value))
        begin = end
    return found


def _box(ax: Axes, x: float, y: float, width: float, role: Role) -> None:
    """One rectangle from ``x``, its middle at height ``y``."""
    ax.add_patch(Rectangle((x, y - 0.4), width, 0.8, fc=role.color, ec=style.DARK_GRAY, lw=0.4,
                           hatch=role.hatch))  # fmt: skip


def _frame(
    ax: Axes, names: Iterable[object], prefix: str, xlim: tuple[int, int], xlabel: str
) -> None:
    """Name the lines from the top down, and leave no frame but the bottom."""
    labels = [f"{prefix}{name}" for name in names]
    ax.set_yticks(range(len(labels)), labels)
    ax.set(ylim=(len(labels) - 0.4, -0.6), xlim=xlim, xlabel=xlabel)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _patches(roles: Iterable[Role]) -> list[Patch]:
    """Legend entries of areas."""
    return [Patch(fc=role.color, ec=style.DARK_GRAY, lw=0.4, hatch=role.hatch, label=role.label)
            for role in roles]  # fmt: skip


def _holder(request: int, victim: int) -> Role:
    if request < 0:
        return NOBODY
    return VICTIM if request == victim else NEIGHBORS[request % 2]
