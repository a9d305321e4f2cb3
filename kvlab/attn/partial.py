"""One rank's share of an attention output, and the merge.

An empty shard is ``lse = -inf``, and its ``out`` is not read: the merge *selects* instead of
multiplying by zero, as 0 * NaN is NaN. A NaN in a shard with keys goes through to the result. Some
backends report NaN or +inf for an empty shard; ``Partial.with_nan_as_empty`` converts theirs.

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
    """``out`` ``(..., d)`` and ``lse`` ``(...)`` in nats, of one rank's keys.

    Errors: IndexSpaceError when ``lse`` has not the shape of ``out`` without its last axis, or when
    one of them is not a tensor of floats.
    """

    out: Tensor
    lse: Tensor

    def __post_init__(self) -> None:
        for name, given in (("out", self.out), ("lse", self.lse)):
            found: object = given
            if not isinstance(found, Tensor) or not found.is_floating_point():
                kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
                raise IndexSpaceError(
                    f"{name} must be a tensor of floats, got {kind}; attention outputs and their "
                    f"lse are neither ids nor counts"
                )
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
        """Convert at the door a partial of a backend that reports NaN or +inf for an empty shard.

        Such a shard becomes ``out = 0, lse = -inf``. Only for backends that say so: elsewhere a NaN
        is a fault, and this would hide it.
        """
        given = cls(out, lse)
        empty = given.lse.isnan() | (given.lse == math.inf)
        return cls(
            given.out.masked_fill(empty[..., None], 0.0), given.lse.masked_fill(empty, -math.inf)
        )

    @classmethod
    def empty(cls, like: Tensor) -> "Partial":
        """The neutral element: a rank without keys. ``like`` gives the shape of ``out``."""
        found: object = like
        if not isinstance(found, Tensor) or not found.is_floating_point() or not found.dim():
            kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
            raise IndexSpaceError(
                f"like must be a tensor of floats with a last axis, as out is: got {kind}"
            )
        return cls(torch.zeros_like(like), like.new_full(like.shape[:-1], -math.inf))


def merge_partials(partials: Sequence[Partial]) -> Partial:
    """Merge the ranks' partials; computed in float32 (float64 stays), cast back to ``out``'s type.

    ``lse`` comes back in the type of the computation, never narrower.
    All shards empty gives ``out = 0, lse = -inf``. Order of the ranks does not matter beyond
    rounding. Errors: IndexSpaceError for no partials, unequal shapes, or ``out`` of unequal types.
    """
    return merge_stacked(*stack_partials(partials))


def stack_partials(partials: Sequence[Partial]) -> tuple[Tensor, Tensor]:
    """``out`` ``(ranks, ..., d)`` and ``lse`` ``(ranks, ...)``, as ``merge_stacked`` takes them.

    ``lse`` in the type of the computation. Errors: as ``merge_partials``.
    """
    found: object = partials
    if not isinstance(found, Sequence) or not all(isinstance(p, Partial) for p in found):
        kinds = [type(p).__name__ for p in found] if isinstance(found, Sequence) else found
        raise IndexSpaceError(
            f"merge_partials takes a list of Partial, one a rank: got "
            f"{kinds if isinstance(kinds, list) else type(kinds).__name__}; merge_stacked takes "
            f"tensors"
        )
    if not partials:
        raise IndexSpaceError("merge_partials needs at least one partial: got an empty sequence")
    shapes = {tuple(p.out.shape) for p in partials}
    if len(shapes) > 1:
        raise IndexSpaceError(f"partials must have one shape: got {sorted(shapes)}")
    kind = partials[0].out.dtype
    if any(p.out.dtype != kind for p in partials):
        raise IndexSpaceError(
            f"partials must have one dtype of out, or the result would depend on their order: got "
            f"{[str(p.out.dtype) for p in partials]}; cast them first"
        )
    wide = torch.float64 if kind == torch.float64 else torch.float32
    lse = torch.stack([p.lse.to(wide) for p in partials])
    return torch.stack([p.out for p in partials]), lse


def merge_stacked(out: Tensor, lse: Tensor) -> Partial:
    """As ``merge_partials``, of ``out`` ``(ranks, ..., d)`` and ``lse`` ``(ranks, ...)``: ranks of
    one process that were computed in one operation are merged without being taken apart.

    Errors: as ``Partial``, and IndexSpaceError for no rank."""
    require_stacked(out, lse)
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    lse = lse.to(wide)
    empty = lse == -math.inf
    top = lse.amax(dim=0)
    # Where a shard is not empty the largest weight is 1, so a total below 1 is a total of 0.
    weight = torch.exp(lse - top.clamp_min(torch.finfo(wide).min))
    sure = weight.sum(dim=0).clamp_min(1.0)
    # Selected before the product, so that garbage reaches neither the value nor a gradient.
    merged = ((weight / sure)[..., None] * out.to(wide).masked_fill(empty[..., None], 0.0)).sum(
        dim=0
    )
    return Partial(
        merged.to(out.dtype), torch.where(empty.all(dim=0), -math.inf, top + torch.log(sure))
    )


def require_stacked(out: Tensor, lse: Tensor) -> None:
    """Raise unless these are stacked partials of a rank or more. Errors: as ``merge_stacked``."""
    Partial(out, lse)
    if out.dim() < 2 or not len(out):
        raise IndexSpaceError(
            f"stacked partials are (ranks, ..., d) of at least one rank: got {tuple(out.shape)}"
        )
