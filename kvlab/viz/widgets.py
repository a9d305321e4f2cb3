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
"""

from kvlab.viz.backup import backup_stepper, backup_stepper_figure
from kvlab.viz.merge import merge_explorer, merge_explorer_figure
from kvlab.viz.owners import owner_explorer, owner_explorer_figure
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
