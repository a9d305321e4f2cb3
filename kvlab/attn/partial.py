"""One rank's share of an attention output, and the merge.

An empty shard is ``lse = -inf``, and its ``out`` is not read: the merge *selects* instead of
multiplying by zero, as 0 * NaN is NaN. A NaN in a shard with keys goes through to the result.

Source: ``layers/dcp/comm.py`` of SGLang; ``notebooks/ENGINEERS.md`` has the log bases of engines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """``out`` ``(..., d)`` and ``lse`` ``(...)`` in nats, of one rank's keys; both floats."""

    out: Tensor
    lse: Tensor

    def __post_init__(self) -> None:
        for name, given in (("out", self.out), ("lse", self.lse)):
            require_floats(name, given)
        if self.out.dim() == 0 or self.out.shape[:-1] != self.lse.shape:
            raise IndexSpaceError(
                f"lse must have the shape of out without its last axis: got out "
                f"{tuple(self.out.shape)}, lse {tuple(self.lse.shape)}"
            )

    @classmethod
    def from_log2(cls, out: Tensor, lse: Tensor) -> "Partial":
        """Convert at the door a partial whose lse is in base 2 (FlashInfer-MLA, trtllm-gen)."""
        given = cls(out, lse)
        return cls(out, given.lse * math.log(2.0))

    @classmethod
    def with_nan_as_empty(cls, out: Tensor, lse: Tensor) -> "Partial":
        """Convert at the door a partial of a backend that reports NaN or +inf for an empty shard:
        elsewhere a NaN is a fault, and this would hide it."""
        given = cls(out, lse)
        empty = given.lse.isnan() | (given.lse == math.inf)
        return cls(
            given.out.masked_fill(empty[..., None], 0.0), given.lse.masked_fill(empty, -math.inf)
        )

    @classmethod
    def empty(cls, like: Tensor) -> "Partial":
        """The neutral element: a rank without keys. ``like`` gives the shape of ``out``."""
        return cls(torch.zeros_like(like), like.new_full(like.shape[:-1], -math.inf))


def merge_partials(partials: Sequence[Partial]) -> Partial:
    """Merge the ranks' partials; computed in float32 (float64 stays), cast back to ``out``'s type.

    ``lse`` comes back in the type of the computation. All shards empty gives ``out = 0, lse =
    -inf``. Order of the ranks does not matter beyond rounding.
    """
    return merge_stacked(*stack_partials(partials))


def stack_partials(partials: Sequence[Partial]) -> tuple[Tensor, Tensor]:
    """``out`` ``(ranks, ..., d)`` and ``lse`` ``(ranks, ...)``, as ``merge_stacked`` takes them."""
    kinds = {(tuple(p.out.shape), str(p.out.dtype)) for p in partials}
    if len(kinds) != 1:
        raise IndexSpaceError(
            f"a merge takes one partial a rank, all of one shape and dtype of out (or the result "
            f"would depend on their order): got {len(partials)} partials of {sorted(kinds)}"
        )
    wide = _wide(partials[0].out)
    return torch.stack([p.out for p in partials]), torch.stack([p.lse.to(wide) for p in partials])


def merge_stacked(out: Tensor, lse: Tensor) -> Partial:
    """As ``merge_partials``, of ``out`` ``(ranks, ..., d)`` and ``lse`` ``(ranks, ...)``."""
    require_stacked(out, lse)
    wide = _wide(out)
    lse = lse.to(wide)
    empty = lse == -math.inf
    top = lse.amax(dim=0)
    # Where a shard is not empty the largest weight is 1, so a total below 1 is a total of 0.
    weight = torch.exp(lse - top.clamp_min(torch.finfo(wide).min))
    sure = weight.sum(dim=0).clamp_min(1.0)
    # Selected before the product, so that garbage reaches neither the value nor a gradient.
    kept = out.to(wide).masked_fill(empty[..., None], 0.0)
    merged = ((weight / sure)[..., None] * kept).sum(dim=0)
    return Partial(
        merged.to(out.dtype), torch.where(empty.all(dim=0), -math.inf, top + torch.log(sure))
    )


def require_stacked(out: Tensor, lse: Tensor) -> None:
    """Raise IndexSpaceError unless these are stacked partials of a rank or more."""
    Partial(out, lse)
    if out.dim() < 2 or not len(out):
        raise IndexSpaceError(
            f"stacked partials are (ranks, ..., d) of at least one rank: got {tuple(out.shape)}"
        )


def require_floats(name: str, given: object) -> None:
    """Raise IndexSpaceError unless ``given`` is a tensor of floats."""
    if not isinstance(given, Tensor) or not given.is_floating_point():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise IndexSpaceError(
            f"{name} must be a tensor of floats, got {kind}; attention takes neither ids nor counts"
        )


def _wide(out: Tensor) -> torch.dtype:
    return torch.float64 if out.dtype == torch.float64 else torch.float32
