"""Pictures of retraction counts: over DCP sizes, budgets and reserves, and over the time of a run.

Each function takes a table that a study made and an origin, and returns a captioned figure. Counts
stand on a scale that is linear up to 1 and logarithmic above, so that the zero, where retractions
stop, is on the page.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from kvlab.lab.origin import Origin
from kvlab.viz import style
from kvlab.viz.style import Width, caption, doubling_axis, figure, legend_below


def retractions_by_dcp_figure(
    table: pd.DataFrame, origin: Origin | None, width: Width = "double"
) -> Figure:
    """One line a budget: retractions against the DCP size.

    Args:
        table: dcp_size, budget_gib, retractions, requests (of ``RetractionStudy.run``).
        origin: None leaves the caption out, for a page that sets it itself:
            ``retractions_by_dcp_text`` is its text.
        width: of one column of a paper, or of two.
    """
    single = width == "single"
    fig = figure(width, height=2.9 if single else 2.6)
    ax = fig.subplots()
    for budget, rows in table.groupby("budget_gib"):
        ax.plot(rows["dcp_size"], rows["retractions"], label=f"{budget:g} GiB")
    _count_axis(ax, "retractions (simulated)", int(table["retractions"].max()))
    _dcp_axis(ax, table)
    falls = _falls(table)
    ax.set_title("Retractions fall as the DCP size grows" if falls else "Retractions by DCP size")
    if single:  # no room beside the lines
        legend_below(ax, ax.lines, ncols=2, title="KV memory of one rank")
    else:
        ax.legend(title="KV memory of one rank", loc="upper right")
    return fig if origin is None else caption(fig, retractions_by_dcp_text(table), origin)


def retractions_by_dcp_text(table: pd.DataFrame) -> str:
    """The definition below ``retractions_by_dcp_figure``, with what its lines do not show."""
    requests = int(table["requests"].iloc[0])
    text = (
        f"Times that a running request gave its KV back under memory pressure, over a whole run "
        f"of {requests:,} requests, simulated."
    )
    aborted = int(table["aborted"].max()) if "aborted" in table else 0
    if aborted:
        text += f" Requests that were aborted are not counted: up to {aborted:,} of a run."
    return text


def _falls(table: pd.DataFrame) -> bool:
    """Whether no line rises with the DCP size, and some line falls."""
    steps = table.sort_values("dcp_size").groupby("budget_gib")["retractions"].diff().dropna()
    return bool((steps <= 0).all() and (steps < 0).any())


def capacity_boundary_figure(table: pd.DataFrame, working_set: float, origin: Origin) -> Figure:
    """Capacity against the DCP size; a full mark retracts, an open one does not.

    ``table``: dcp_size, budget_gib, capacity_tokens, retractions. ``working_set``: tokens.
    """
    fig = figure("double", height=2.8)
    ax = fig.subplots()
    for budget, rows in table.groupby("budget_gib"):
        ax.plot(rows["dcp_size"], rows["capacity_tokens"], "-", color=style.LIGHT_GRAY, marker="")
        last = rows.iloc[-1]
        at = (float(last["dcp_size"]), float(last["capacity_tokens"]))
        name = ax.annotate(f"{budget:g} GiB", at, (8, 0), textcoords="offset points", va="center")
        name.set_bbox({"fc": style.WHITE, "ec": "none", "pad": 0.5})  # the line passes below it
    for retracts, label, marker, fill, color in (
        (True, "retracts", "X", style.VERMILLION, style.VERMILLION),
        (False, "never retracts", "o", style.WHITE, style.BLUE),
    ):
        rows = table[(table["retractions"] > 0) == retracts]
        points = (rows["dcp_size"], rows["capacity_tokens"])
        ax.plot(*points, ls="", marker=marker, ms=7, mfc=fill, mec=color, zorder=3, label=label)
    ax.axhline(working_set, color=style.DARK_GRAY, ls="--", lw=1, label="working set")
    _dcp_axis(ax, table)
    ax.set_yscale("log")
    ax.set_ylabel("capacity of the node (tokens)")
    ax.set_title("Where retractions stop: capacity of the node, and the working set")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=3)
    return caption(
        fig,
        "Capacity = pages * P * c, from one rank's memory. Working set = requests at once * mean "
        f"tokens of a request = {working_set:,.0f} tokens. Whether a run retracts is simulated.",
        origin,
    )


def retractions_by_reserve_figure(table: pd.DataFrame, origin: Origin) -> Figure:
    """One line a DCP size: retractions against the tokens reserved for each running request.

    ``table``: dcp_size, reserved_decode_tokens, retractions, budget_gib (one value).
    """
    fig = figure("double", height=2.4)
    ax = fig.subplots()
    for size, rows in table.groupby("dcp_size"):
        ax.plot(rows["reserved_decode_tokens"], rows["retractions"], label=f"{size}")
    _count_axis(ax, "retractions (simulated)", int(table["retractions"].max()))
    reserves = sorted(table["reserved_decode_tokens"].unique())
    label = "tokens reserved for each running request at admission"
    doubling_axis(ax, reserves, label, [str(reserve) for reserve in reserves])
    ax.set_title(f"A reserve prevents retractions ({table['budget_gib'].iloc[0]:g} GiB a rank)")
    ax.legend(title="DCP size", loc="upper right", ncols=2)
    text = (
        "Reserve: room for output that a node keeps for each running request when it lets another "
        "in (num_reserved_decode_tokens). Retractions of a whole run, simulated."
    )
    return caption(fig, text, origin)


def backup_or_recompute_figure(table: pd.DataFrame, origin: Origin) -> Figure:
    """One line a way back: the tokens that retractions cost in a whole run.

    ``table``: dcp_size, way ('backup', 'recompute'), tokens.
    """
    fig = figure("double", height=2.5)
    ax = fig.subplots()
    for way, rows in table.groupby("way"):
        ax.plot(rows["dcp_size"], rows["tokens"], label=way)
    _count_axis(ax, "tokens (simulated)", int(table["tokens"].max()))
    _dcp_axis(ax, table)
    ax.set_title("Two ways back: copy the KV, or compute it again")
    ax.legend(loc="lower left")
    return caption(
        fig,
        "Positions copied to the host and back (both counted), or prefilled again, in a whole run. "
        "The two nodes admit by different rules, so they do not retract equally often.",
        origin,
    )


def retractions_per_request_figure(table: pd.DataFrame, origin: Origin) -> Figure:
    """How many requests were retracted how often; ``table``: times, requests."""
    fig = figure("single", height=2.0)
    ax = fig.subplots()
    bars = ax.bar(table["times"], table["requests"], width=0.7, color=style.BLUE)
    ax.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
    ax.set_yscale("log")
    ax.set_ylim(0.7, 4 * table["requests"].max())
    ax.set_xticks(table["times"])
    ax.set(xlabel="retractions of one request", ylabel="requests (simulated)")
    ax.set_title("How often each request was retracted")
    text = "Requests of one run by how often each was retracted (upstream: num_retractions)."
    return caption(fig, text, origin)


def _count_axis(ax: Axes, label: str, most: int) -> None:
    """A vertical axis for counts: linear to 1, logarithmic above, the zero on the page."""
    ax.set_yscale("symlog", linthresh=1, linscale=0.6)
    ax.set_ylim(-0.15, 1.6 * max(1, most))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.set_ylabel(label)
    ax.grid(axis="y")


def _dcp_axis(ax: Axes, table: pd.DataFrame) -> None:
    sizes = sorted(table["dcp_size"].unique())
    doubling_axis(ax, sizes, "DCP size c", [str(size) for size in sizes])
