"""Answers of a reader: made plain, compared with the spec, and the first difference in words.

A tensor, an array, a list: what counts is the values. So both sides become plain Python values
first; an object with an ``__eq__`` of its own is no answer.

    >>> import torch
    >>> difference(plain(torch.tensor([3, 4])), [3, 5])
    'element 1 is 4, the spec says 5'
"""

import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import TypeAlias

import numpy as np
import torch

from kvlab.index import PhysicalRows, WidenedSlots

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"

#: Tolerance of floats: float32 arithmetic passes, a wrong rule does not.
REL_TOL, ABS_TOL = 2e-5, 1e-6
MOST_ELEMENTS, DEEPEST, LETTERS = 100_000, 8, 600


class NotPlain(TypeError):
    """An answer that is neither numbers, words, nor sequences of them."""


def plain(value: object, depth: int = 0) -> Plain:
    """``value`` as bool, int, float, str, None or lists of these. ``depth``: lists around it.

    Errors: NotPlain for anything else, and for what is too large or too deep for any answer.
    """
    if isinstance(value, WidenedSlots | PhysicalRows):
        value = value.ids
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        count = math.prod(value.shape)
        if count > MOST_ELEMENTS:
            raise NotPlain(f"an answer of {count} numbers: none has more than {MOST_ELEMENTS}")
        return plain(value.tolist())
    if value is None or value is ...:
        return None
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Fraction | Decimal):
        return int(value) if value == value // 1 else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple | range | Iterator):
        if depth == DEEPEST:
            raise NotPlain(f"an answer of lists within lists, more than {DEEPEST} deep")
        return [plain(item, depth + 1) for item in islice(value, MOST_ELEMENTS)]
    raise NotPlain(f"an answer of type {type(value).__name__}: give numbers, or lists of them")


def difference(yours: Plain, spec: Plain, at: str = "") -> str | None:
    """The first difference of two plain answers, in words; None when they agree."""
    told = at + spelled(yours)
    if isinstance(spec, list):
        if not isinstance(yours, list):
            return f"{told} where {len(spec)} values in a sequence are meant"
        for number, (mine, meant) in enumerate(zip(yours, spec, strict=False)):
            inside = isinstance(meant, list)
            where = f"in element {number}: " if inside else f"element {number} is "
            found = difference(mine, meant, at + where)
            if found is not None:
                return found
        same = len(yours) == len(spec)
        return None if same else f"{at}{len(yours)} values, the spec has {len(spec)}"
    if isinstance(yours, list):
        return f"{at}a sequence of {len(yours)} where one value ({spec!r}) is meant"
    if type(spec) is int and isinstance(yours, float):
        return f"{told}, a float where a whole number is meant: use // and not /"
    if isinstance(spec, float) and isinstance(yours, int | float) and not isinstance(yours, bool):
        same = _close(yours, spec)
    else:
        same = type(yours) is type(spec) and yours == spec
    return None if same else f"{told}, the spec says {spec!r}"


def _close(yours: float, spec: float) -> bool:
    try:
        both_nan = math.isnan(spec) and math.isnan(yours)
        return both_nan or math.isclose(yours, spec, rel_tol=REL_TOL, abs_tol=ABS_TOL)
    except OverflowError:  # an int past every float
        return False


def cut(text: str) -> str:
    """``text``, or its first letters and how many there are."""
    told = f"{text[:LETTERS]} ... ({len(text)} letters in all)"
    return text if len(text) <= len(told) else told


def spelled(value: object) -> str:
    """``repr(value)``, cut; never raises, whatever a reader's object does."""
    try:
        return cut(repr(value))
    except Exception:  # a repr of the reader, or a number of more digits than Python prints
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be shown"


def short(value: object) -> str:
    """``value`` on one line, a long list cut in the middle; a word as it is."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        items = [spelled(item) if isinstance(item, str) else short(item) for item in value]
        if len(items) > 24:
            items = [*items[:16], "...", *items[-4:], f"({len(value)} in all)"]
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")")
        return f"{opening}{', '.join(items)}{closing}"
    return cut(value) if isinstance(value, str) else spelled(value)
