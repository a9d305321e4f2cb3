"""The exercises of the path, one module a notebook, named as the notebook is."""

from kvlab.teach.exercise import Exercise
from kvlab.teach.path import (
    n00_start_here,
    n01_two_index_spaces,
    n02_owner_slots,
    n03_crash_reproduction,
    n04_backup_and_restore,
    n05_retraction_counts,
    n06_logprob_drift,
    n07_what_it_costs,
)

__all__ = ["EXERCISES"]

_NOTEBOOKS = (
    *(n00_start_here, n01_two_index_spaces, n02_owner_slots, n03_crash_reproduction),
    *(n04_backup_and_restore, n05_retraction_counts, n06_logprob_drift, n07_what_it_costs),
)
#: By name; notebook by notebook, rising grades within each.
#:
#: :meta hide-value:
EXERCISES = {
    found.name: found
    for notebook in _NOTEBOOKS
    for found in vars(notebook).values()
    if isinstance(found, Exercise)
}
