"""Explorers: one question each, to be dragged in a notebook or drawn from a script.

    from kvlab.viz.widgets import owner_explorer
    owner_explorer()                                    in a notebook: a Panel
    owner_explorer_figure(dcp_size=4, slot=21)          in a script: a figure with its caption

Each is a thin view over a pure function. The twin takes the same arguments, and ``width``
("single", "double": columns of a paper). Controls, which are the arguments:

    owner_explorer        dcp_size, page_size, pages ("3, 1"), start, length, rule, interleave, slot
    backup_stepper        dcp_size, page_size, length, pool ("low", "full"), fix, step
    retraction_timeline   dcp_size, capacity (rows a rank), restore ("backup", "recompute"), step
    merge_explorer        ranks, lse_0 .. lse_3, empty_0 .. empty_3,
                          reported ("-inf", "+inf", "NaN", "0"), log_base ("right", "wrong"),
                          merge ("checked", "plain")
    drift_explorer        condition, dtype, dcp_size, request, token

``python -m kvlab.viz.widgets`` measures how long a move of each takes: it moves one control at a
time, at random with a fixed seed, to all that the controls can reach; settings that are refused in
words are not counted. ``wall`` is what a reader waits for the picture, ``cpu`` what this process
worked, the smaller of the two on a busy machine.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator

import ipywidgets as widgets

from kvlab.viz.backup import backup_stepper, backup_stepper_figure
from kvlab.viz.merge import merge_explorer, merge_explorer_figure
from kvlab.viz.owners import owner_explorer, owner_explorer_figure
from kvlab.viz.panel import Panel
from kvlab.viz.timeline import retraction_timeline, retraction_timeline_figure
from kvlab.viz.tokens import drift_explorer, drift_explorer_figure

__all__ = [
    "backup_stepper",
    "backup_stepper_figure",
    "drift_explorer",
    "drift_explorer_figure",
    "merge_explorer",
    "merge_explorer_figure",
    "owner_explorer",
    "owner_explorer_figure",
    "retraction_timeline",
    "retraction_timeline_figure",
]
EXPLORERS: tuple[Callable[[], Panel], ...] = (
    owner_explorer,
    backup_stepper,
    retraction_timeline,
    merge_explorer,
    drift_explorer,
)
PAGES = ("3, 1", "1", "5, 2, 9, 1, 12, 4", "12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1")


def choices(control: widgets.Widget) -> list[object]:
    """Every value that a control can be moved to; for a text, a few."""
    if control.has_trait("options"):
        return [value for _, value in control._options_full]
    if isinstance(control, widgets.Checkbox):
        return [False, True]
    if isinstance(control, widgets.Text):
        return list(PAGES)
    steps = round((control.max - control.min) / control.step)
    return [control.min + at * control.step for at in range(steps + 1)]


def moves(panel: Panel, count: int, seed: int) -> Iterator[tuple[float, float]]:
    """Seconds (wall, cpu) of ``count`` moves of one control each that drew a picture."""
    rng, made = random.Random(seed), 0
    while made < count:
        name = rng.choice(list(panel.values))
        value = rng.choice(choices(panel.control(name)))
        if value == panel.values[name]:
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        panel.set(**{name: value})
        spent = time.perf_counter() - wall, time.process_time() - cpu
        if not panel.text.startswith("Not drawn"):
            made += 1
            yield spent


def parser() -> argparse.ArgumentParser:
    """The options of ``python -m kvlab.viz.widgets``."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.viz.widgets",
        description="Move each explorer at random and print how long a move takes.",
    )
    made.add_argument(
        "--moves", type=int, default=60, metavar="N", help="moves of each explorer (%(default)s)"
    )
    made.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the settings (%(default)s)"
    )
    return made


def main() -> int:
    """Print median and largest milliseconds of each explorer."""
    asked = parser().parse_args()
    print(f"{'explorer':22}{'wall median':>12}{'max':>7}{'cpu median':>12}{'max':>7}   ms a move")
    for make in EXPLORERS:
        wall, cpu = zip(*moves(make(), asked.moves, asked.seed), strict=True)
        told = [1000 * f(times) for times in (wall, cpu) for f in (statistics.median, max)]
        print(f"{make.__name__:22}{told[0]:12.0f}{told[1]:7.0f}{told[2]:12.0f}{told[3]:7.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
