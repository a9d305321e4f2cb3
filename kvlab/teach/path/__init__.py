"""The exercises of the path, one module a notebook, in the order in which the path teaches."""

from kvlab.teach.exercise import Exercise
from kvlab.teach.path import n00_start, n01_spaces

__all__ = ["ALL"]

#: All exercises: notebook by notebook, rising grades within each.
ALL: tuple[Exercise, ...] = (*n00_start.ALL, *n01_spaces.ALL)
