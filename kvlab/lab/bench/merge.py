"""Merge: c partials of a decode step into one, against a copy of the bytes that this must move.

The shapes are those of a batch whose ranks hold one request's keys together: every head of the
layer, c outputs in bfloat16 with their lse in float32. Latent outputs (512) are merged when values
are absorbed, value outputs (128) when they are expanded. Worked example: 64 requests of 32 heads
and 512 elements on c=8 read 8 x 2,048 rows of 1,028 bytes and write 2,048; the copy is of half of
that, 9.5 MB.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvlab.attn import Partial
from kvlab.errors import StudyError
from kvlab.lab.bench.clock import Effort, take_turns_within
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Aim, Facts, LeftOut, Row, compare
from kvlab.lab.bench.tour import Tour
from kvlab.ops import Backend, merge_stacked

PART = "merge"
COPY = "copy"
NEAR_COPY = Aim(0.8, "at least 0.8")
# Outputs have a standard deviation of 1; bfloat16 keeps 8 bits.
_EQUAL = 2e-2

_EFFORT, _QUICK = Effort(0.8, most=30), Effort(0.3, most=9)


@dataclass(frozen=True, slots=True)
class MergeCase:
    """``dcp_size`` partials of ``requests`` x ``heads`` rows of ``width`` elements."""

    model: str
    dcp_size: int
    requests: int
    heads: int
    width: int
    effort: Effort = _EFFORT

    @property
    def name(self) -> str:
        """For instance "Kimi Linear, 64 requests x 32 heads x 512, c=8"."""
        shape = f"{self.requests} requests x {self.heads} heads x {self.width}"
        return f"{self.model}, {shape}, c={self.dcp_size}"

    @property
    def copy_bytes(self) -> int:
        """Half of c partials read and one written."""
        return (self.dcp_size + 1) * self.requests * self.heads * (2 * self.width + 4) // 2

    @property
    def read_bytes(self) -> int:
        """The partials of one merge."""
        return self.dcp_size * self.requests * self.heads * (2 * self.width + 4)


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Partials of one merge, ``(c, requests, heads, width)`` and ``(c, requests, heads)``; bytes of
    them to copy, and where to."""

    out: Tensor
    lse: Tensor
    source: Tensor
    target: Tensor


FULL = tuple(
    MergeCase(model, c, requests, heads, width)
    for model, heads in (("Kimi Linear", 32), ("DeepSeek", 128))
    for width in (512, 128)
    for requests in (8, 64)
    for c in (2, 4, 8)
)
QUICK = (MergeCase("Kimi Linear", 8, 8, 32, 512, _QUICK),)


def make_stacks(case: MergeCase, place: Place) -> list[Stack]:
    """Partials of several steps, more than the cache holds; one in eight is an empty shard."""
    chance = torch.Generator(place.device).manual_seed(0)
    shape = (case.dcp_size, case.requests, case.heads)
    stacks = []
    for _ in range(place.sets(case.read_bytes)):
        out = torch.randn(*shape, case.width, generator=chance, device=place.device)
        lse = 3 * torch.randn(shape, generator=chance, device=place.device)
        lse[torch.rand(shape, generator=chance, device=place.device) < 0.125] = -torch.inf
        out = out.to(torch.bfloat16)
        source = out.view(-1).view(torch.uint8)[: case.copy_bytes]
        stacks.append(Stack(out, lse, source, torch.zeros_like(source)))
    return stacks


def merge_name(backend: Backend) -> str:
    """What a row calls ``merge_stacked`` by this backend."""
    return f"merge_stacked, {backend}"


def rows_of(case: MergeCase, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when a merge is not the weighted mean."""
    stacks = make_stacks(case, place)
    tour = Tour(stacks, len(place.backends) + 1)
    contenders = []
    for backend in place.backends:
        _require_mean(case, backend, stacks[0])
        contenders.append(tour.add(merge_name(backend), _merge_by(backend)))
    contenders.append(tour.add(COPY, lambda stack: stack.target.copy_(stack.source)))
    timing = take_turns_within(contenders, case.effort, place.wait)
    rows = []
    for backend in place.backends:
        facts = Facts(
            "merge", backend, tokens=case.requests, dcp_size=case.dcp_size, bytes=case.copy_bytes
        )
        aim = NEAR_COPY if backend == place.backend and not place.on_cpu else None
        name = merge_name(backend)
        rows.append(compare(PART, case.name, timing, name, COPY, aim, facts=facts, copy=COPY))
    return rows


def measure(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case."""
    for case in QUICK if quick else FULL:
        # What is read, twice that in float32 while it is made or merged by torch, and the copies.
        why = place.lacks(0, case.read_bytes * 2 * (place.sets(case.read_bytes) + 4))
        yield rows_of(case, place) if why is None else LeftOut(PART, case.name, why)


def _merge_by(backend: Backend) -> Callable[[Stack], Partial]:
    return lambda stack: merge_stacked(stack.out, stack.lse, backend=backend)


def _require_mean(case: MergeCase, backend: Backend, stack: Stack) -> None:
    out, lse = stack.out, stack.lse
    merged: Partial = merge_stacked(out, lse, backend=backend)
    weights = torch.nan_to_num(torch.softmax(lse.double(), dim=0))  # NaN: every shard is empty
    want = (weights[..., None] * out.double()).sum(dim=0)
    apart = float((merged.out.double() - want).abs().max())
    total = float((torch.logsumexp(lse.double(), dim=0) - merged.lse).nan_to_num().abs().max())
    if not (apart <= _EQUAL and total <= _EQUAL):
        raise StudyError(
            f"what is timed must be right: the merge by {backend} is {apart:.3g} from the weighted "
            f"mean and its lse {total:.3g} ({case.name}), at most {_EQUAL} is rounding; do not "
            f"trust this benchmark"
        )
