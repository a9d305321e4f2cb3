"""Backup and restore by size: layers, tokens of a request, ranks; on any device.

Ours is the pool's own pair of methods, upstream is its loop by layers and chunks, and the floor is
one copy of as many bytes between the buffer and the arena's memory, pinned on CUDA: out for a
backup, back for a restore. Each takes its turn. What is equal for them is told in ``request_pool``.

Worked example: 16k tokens of 27 layers on c=8 are 64 MB of one rank; a backup in 5 ms beside a copy
in 4 ms is a share of 0.8.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index import WidenedSlots
from kvlab.lab.bench.clock import Effort, take_turns_within
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.request_pool import RequestBench, RequestCase
from kvlab.lab.bench.rows import Aim, Facts, LeftOut, Row, compare

PART = "copy"
ABOVE_UPSTREAM = Aim(5.0, "at least 5x")
NEAR_COPY = Aim(0.85, "at least 0.85")

FULL = tuple(
    RequestCase(layers, tokens * 2**10, c)
    for layers in (27, 61)
    for tokens in (1, 4, 16, 64)
    for c in (1, 2, 4, 8)
)
QUICK = tuple(RequestCase(27, 2**10, c, Effort(0.3, most=9)) for c in (1, 8))


def rows_of(case: RequestCase, place: Place) -> list[Row]:
    """Time one case. Errors: StudyError when ours and upstream's loop copy different rows."""
    bench = RequestBench(case, place)
    require_equal(bench)
    above, near = (None, None) if place.on_cpu else (ABOVE_UPSTREAM, NEAR_COPY)
    rows = []
    for op, made in (("backup", bench.backups), ("restore", bench.restores)):
        contenders = made()
        timing = take_turns_within(contenders, case.effort, place.wait)
        ours, theirs, copy = (contender.name for contender in contenders)
        facts = Facts(
            op,
            place.backend,
            layers=case.layers,
            tokens=case.tokens,
            dcp_size=case.dcp_size,
            bytes=case.request_bytes,
        )
        rows += [
            compare(PART, case.name, timing, ours, base, aim, facts=facts, copy=copy)
            for base, aim in ((theirs, above), (copy, near))
        ]
        del contenders  # with what they keep
    return rows


def measure(quick: bool, place: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case; those that the memory here cannot hold are left out."""
    for case in QUICK if quick else FULL:
        why = place.lacks(*case.needs(place))
        yield rows_of(case, place) if why is None else LeftOut(PART, case.name, why)


def require_equal(bench: RequestBench) -> None:
    """Raise StudyError unless both ways out give the same rows, and both ways back put them there.

    Rows are compared in place by their checksum, so that no second pool is needed: every
    bit of the buffer is turned, one request is restored, and its new slots are backed up again.
    """
    pool, same = bench.pool, True
    backup, copies = bench.back_up(0), bench.back_up_upstream(0)
    bench.place.wait()
    want = backup.checksum
    for layer, chunks in zip(backup.kv, copies, strict=True):
        same = same and _same(layer, torch.cat(chunks))
    ways: tuple[Callable[[], None], ...] = (
        lambda: bench.restore(backup, 0),
        lambda: bench.restore_upstream(copies, 0),
    )
    for way in ways:
        bench.flat.bitwise_not_()
        way()
        bench.place.wait()
        again = pool.get_cpu_copy(WidenedSlots(bench.others[0]))
        same = same and again.checksum == want
        again.discard()
    if not same:
        raise StudyError(
            f"what is timed must be right: ours and upstream's loop copy different rows "
            f"({bench.case.name}); do not trust this benchmark"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal bytes; random bf16 holds NaN, which equals nothing."""
    return torch.equal(one.view(torch.int16), other.view(torch.int16))
