"""Answers of a reader: made plain, compared with the spec, and the first difference in words.

A reader may answer with a tensor, an array, a list or a number; what counts is the values. So both
sides become plain Python values first. That also means that an object with an ``__eq__`` of its own
is no answer.

    >>> import torch
    >>> difference(plain(torch.tensor([3, 4])), [3, 5])
    'element 1 is 4, the spec says 5'
    >>> difference(plain(2.0), 2)
    'a float (2.0) where a whole number is meant: use // and not /'
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
from kvlab.teach.display import spelled

Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"

#: Relative and absolute tolerance of floats: float32 arithmetic passes, a wrong rule does not.
REL_TOL, ABS_TOL = 2e-5, 1e-6
MOST_ELEMENTS, DEEPEST = 100_000, 8


class NotPlain(TypeError):
    """An answer that is neither numbers, words, nor sequences of them."""


def plain(value: object, depth: int = 0) -> Plain:
    """``value`` as bool, int, float, str, None or lists of these; tuples become lists.

    Tensors, arrays, ranges, iterators and kvlab's id wrappers become lists; a set becomes a sorted
    list; a fraction becomes an int where it is whole, else a float. ``depth``: lists around it.
    Errors: NotPlain for anything else, and for what is too large or too deep for any answer.
    """
    if value is None or value is ...:
        return None
    if isinstance(value, WidenedSlots | PhysicalRows):
        return plain(value.ids)
    if isinstance(value, torch.Tensor | np.ndarray):
        count = math.prod(value.shape)
        if count > MOST_ELEMENTS:
            raise NotPlain(f"an answer of {count} numbers: none has more than {MOST_ELEMENTS}")
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().tolist())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Fraction | Decimal):
        return int(value) if value == value // 1 else float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, set | frozenset):
        return plain(sorted(value), depth)
    if isinstance(value, list | tuple | range | Iterator):
        if depth == DEEPEST:
            raise NotPlain(f"an answer of lists within lists, more than {DEEPEST} deep")
        return [plain(item, depth + 1) for item in islice(value, MOST_ELEMENTS)]
    raise NotPlain(f"an answer of type {type(value).__name__}: give numbers, or lists of them")


def difference(yours: Plain, spec: Plain) -> str | None:
    """The first difference of two plain answers, in words; None when they agree."""
    if isinstance(spec, list):
        return _of_lists(yours, spec)
    found = _of_scalars(yours, spec)
    return None if found is None else found if " " in found else f"{found}, the spec says {spec!r}"


def _of_lists(yours: Plain, spec: list[Plain]) -> str | None:
    if not isinstance(yours, list):
        return f"{spelled(yours)} where {len(spec)} values in a sequence are meant"
    for at, (mine, meant) in enumerate(zip(yours, spec, strict=False)):
        if isinstance(meant, list):
            deeper = difference(mine, meant)
            if deeper is not None:
                return f"in element {at}: {deeper}"
        else:
            found = _of_scalars(mine, meant)
            if found is not None and " " in found:
                return f"element {at}: {found}"
            if found is not None:
                return f"element {at} is {found}, the spec says {meant!r}"
    if len(yours) != len(spec):
        return f"{len(yours)} values, the spec has {len(spec)}"
    return None


def _of_scalars(yours: Plain, spec: Plain) -> str | None:
    """None when equal; else a sentence, or the value alone where a sentence is to be built."""
    if isinstance(yours, list):
        return f"a sequence of {len(yours)} where one value ({spec!r}) is meant"
    if isinstance(spec, bool) or isinstance(yours, bool):
        same = isinstance(spec, bool) and isinstance(yours, bool) and yours == spec
        return None if same else _word(yours)
    if isinstance(spec, int) and isinstance(yours, float):
        return f"a float ({yours!r}) where a whole number is meant: use // and not /"
    if isinstance(spec, float) and isinstance(yours, int | float):
        return None if _close(yours, spec) else _word(yours)
    return None if type(yours) is type(spec) and yours == spec else _word(yours)


def _close(yours: int | float, spec: float) -> bool:
    try:
        both_nan = math.isnan(spec) and math.isnan(yours)
        return both_nan or math.isclose(yours, spec, rel_tol=REL_TOL, abs_tol=ABS_TOL)
    except OverflowError:  # an int past every float
        return False


def _word(value: Plain) -> str:
    text = spelled(value)
    return text if " " not in text else f"{text} instead of the spec's value"
