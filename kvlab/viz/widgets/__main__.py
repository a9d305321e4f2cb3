"""How long a move of each explorer takes: ``python -m kvlab.viz.widgets``.

Each explorer is moved through settings drawn at random (with a fixed seed) from all that its
controls can reach; settings that it refuses in words are not counted. ``wall`` is what a reader
waits for the picture, ``cpu`` what this process worked, the smaller of the two on a busy machine.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator

import ipywidgets as widgets

from kvlab.viz.panel import Panel
from kvlab.viz.widgets import (
    backup_stepper,
    drift_explorer,
    merge_explorer,
    owner_explorer,
    retraction_timeline,
)

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
