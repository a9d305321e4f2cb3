"""The exercises of the path, one module a notebook, in the order in which the path teaches."""

from kvlab.teach.exercise import Exercise
from kvlab.teach.path import (
    n00_start,
    n01_spaces,
    n02_owners,
    n03_crash,
    n04_backup,
    n05_retraction,
    n06_drift,
    n07_cost,
)

__all__ = ["ALL"]

#: All exercises: notebook by notebook, rising grades within each.
ALL: tuple[Exercise, ...] = (
    *n00_start.ALL,
    *n01_spaces.ALL,
    *n02_owners.ALL,
    *n03_crash.ALL,
    *n04_backup.ALL,
    *n05_retraction.ALL,
    *n06_drift.ALL,
    *n07_cost.ALL,
)
