"""Localize: from widened slots to the rows of one rank. Done once, by whoever touches the buffer.

- ``localize_masked`` keeps the ids whose owner is this rank and divides. Always right.
- ``localize_strided`` takes the elements whose *position* is this rank's, and divides. Many times
  cheaper, and right exactly when slot and position agree about the owner, which is verified.
- ``localize_fixed_shape`` keeps the shape of its input, as captured graphs and kernels need.

Worked example, c=2, run [5, 6, 7]: rank 0 owns slot 6, row 3. The stride without a phase would
take slots 5 and 7 and give rows [2, 3]; the phase of start=1 gives [3].

Source: ``maybe_dcp_kernel_indices`` of SGLang (``layers/dcp/layout.py``, PR 39487) is the strided
form with start 0 and without the check; PR 38790 proposed the mask.
"""

from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index.layout import DcpLayout, Shard, require_int
from kvlab.index.spaces import PhysicalRows, WidenedSlots, as_ids, bounds, make_rows, require_within

IntArray = npt.NDArray[np.int64]
Ids = TypeVar("Ids", Tensor, IntArray)

# Ids are viewed in lines of about this many for the check: long enough for SIMD, short enough
# that a line of the accumulator stays in the first-level cache.
_LINE = 1024
# Ids that are checked before the rows among them are taken: a quarter of a second-level cache.
_PIECE = 2**15
_SIGN = -(2**63)


def owner_of(ids: Tensor, dcp_size: int, interleave: int = 1) -> Tensor:
    """The owner rank of each slot, int64 ``(n,)``; -1 for a negative id (a hole has no owner)."""
    ids, shard = as_ids(ids, "ids"), Shard(dcp_size, 0, interleave)
    return torch.where(ids < 0, -1, shard.owner(ids))


def row_of(ids: Tensor, dcp_size: int, interleave: int = 1) -> Tensor:
    """The row of each slot in its owner's buffer, int64 ``(n,)``; -1 for a negative id."""
    ids, shard = as_ids(ids, "ids"), Shard(dcp_size, 0, interleave)
    return torch.where(ids < 0, -1, shard.row(ids))


def owned_elements(ids: Tensor, shard: Shard) -> Tensor:
    """The elements of ``ids`` that the rank stores: int64 ``(m,)``, ascending. Refuses holes."""
    ids = as_ids(ids, "ids")
    refuse_negative(ids)
    return torch.nonzero(shard.owns(ids)).flatten()


def localize_masked(ids: Tensor, shard: Shard) -> Tensor:
    """The rows that the rank holds of ``ids``, in their order: int64 ``(m,)``. Right for any ids in
    any order, at the cost of several passes. Errors: IndexSpaceError for a negative id."""
    source = owned_elements(ids, shard)
    return shard.row(as_ids(ids, "ids")[source])


def localize_strided(ids: Tensor, shard: Shard, start: int = 0, *, check: bool = True) -> Tensor:
    """The rows that the rank holds of a run of consecutive positions: int64 ``(m,)``.

    Args:
        ids: int64 ``(n,)``, slots of positions ``start .. start+n-1``; any ragged length.
        start: position of ``ids[0]``; sets the phase of the stride.
        check: verify that slot and position agree about the owner. Without it the answer is
            silently wrong for a run that does not, and ids of other ranks are not read.

    Errors: IndexSpaceError (checked) with the first element where slot and position disagree.
    """
    require_int("start", start, 0, "the position of ids[0]")
    ids = as_ids(ids, "ids")
    rows = _checked_stride(ids, shard, start) if check else _take(ids, shard, start)
    if rows is None:
        _require_agreement(ids, shard, start)
        return _take(ids, shard, start)  # of another turn, but of the right owners
    return rows


def localize_fixed_shape(ids: Tensor, shard: Shard, hole: int = -1) -> Tensor:
    """The row of each owned id, ``hole`` elsewhere; int64, same shape ``(n,)``.

    Negative ids are holes on every rank; ``hole`` is -1 for reads, a row of the padding page for
    writes. No synchronization. Source: ``localize_dcp_indices`` upstream.
    """
    require_int("hole", hole, -1, "a hole (-1) or a row of the padding page")
    ids = as_ids(ids, "ids")
    return torch.where(shard.owns(ids), shard.row(ids), hole)


def run_is_aligned(ids: Tensor, turn: int, start: int = 0) -> bool:
    """Whether ``ids[i] % turn == (start + i) % turn`` for all i, with no negative id. Exact.

    Equal places in the turn of c * I ids mean equal owners. Three ways: on a CPU, for a power of
    two, OR and AND over lines that are a multiple of the turn long equal the position's low bits
    exactly when every id does; for another turn, ids rise by one but at page breaks, so the ends of
    each piece are looked at; elsewhere ``(ids - position) % turn``.
    """
    require_int("turn", turn, 1, "the slots of one turn over all ranks")
    require_int("start", start, 0, "the position of ids[0]")
    return _is_aligned(as_ids(ids, "ids"), turn, start)


def _is_aligned(ids: Tensor, turn: int, start: int) -> bool:
    if not ids.is_cpu:
        want = torch.arange(len(ids), device=ids.device) + start % turn
        return bool(((ids >= 0) & ((ids - want) % turn == 0)).all())
    return _is_aligned_array(ids.numpy(), turn, start)


def _is_aligned_array(flat: IntArray, turn: int, start: int) -> bool:
    n, phase = len(flat), start % turn
    if n == 0 or turn == 1:
        return n == 0 or int(flat.min()) >= 0
    if turn & (turn - 1) or turn > _LINE:
        breaks = np.flatnonzero(np.diff(flat) != 1)
        heads = np.concatenate(([0], breaks + 1))
        pieces = flat[heads]
        # The last ids too: past 2**63 - 1 a piece wraps into the negative, still rising by one.
        if pieces.min() < 0 or flat[-1] < 0 or (breaks.size and flat[breaks].min() < 0):
            return False
        return bool(((pieces - heads - phase) % turn == 0).all())
    flat, width = np.ascontiguousarray(flat), min(_LINE, n + -n % turn)
    whole = n // width * width
    want_bits = _low_bits(turn, phase)
    return (not whole or _agree(flat[:whole].reshape(-1, width), want_bits, turn)) and (
        whole == n or _agree(flat[whole:].reshape(1, -1), want_bits, turn)
    )


@lru_cache(maxsize=64)
def _low_bits(turn: int, phase: int) -> IntArray:
    return (np.arange(_LINE) + phase) & (turn - 1)


def _agree(lines: IntArray, want_bits: IntArray, turn: int) -> bool:
    low = turn - 1
    # Compared as bytes: a few thousand of them, for which each NumPy call costs more than its work.
    want = want_bits[: lines.shape[1]].tobytes()
    # The sign bit survives the OR, so one negative id shows here too.
    ored = (np.bitwise_or.reduce(lines, axis=0) & (low | _SIGN)).tobytes()
    anded = (np.bitwise_and.reduce(lines, axis=0) & low).tobytes()
    return bool(ored == want == anded)


def localize(slots: WidenedSlots, layout: DcpLayout, rank: int) -> PhysicalRows:
    """The rows of ``slots`` in the buffer of ``rank``, each with the element it came from.

    A run from the request table was verified as it was written, and costs the stride. Of any other
    run slot and position are compared first; where they disagree about the owner (several ragged
    runs joined) the mask is used, and is right. Errors: IndexSpaceError for PhysicalRows (they are
    localized already), and for a slot of this rank that the layout does not hand out.
    """
    given: object = slots
    if isinstance(given, PhysicalRows):
        as_ids(given, "slots")  # raises, in the caller's words
    if not isinstance(given, WidenedSlots):
        raise IndexSpaceError(
            f"localize takes WidenedSlots, got {type(given).__name__}; wrap the ids: "
            f"WidenedSlots(ids, start=position of the first)"
        )
    shard, ids, start = layout.shard(rank), slots.ids, slots.start
    if slots.verified_for(layout):
        return make_rows(_take(ids, shard, start), None, rank, layout, slots)
    rows, source = _checked_stride(ids, shard, start), None
    if rows is None:
        source = owned_elements(ids, shard)
        rows = shard.row(ids[source])
    if rows.numel():
        least, most = bounds(rows)
        if least < layout.first_row or most >= layout.row_end:
            require_in_layout(ids, layout)
    return make_rows(rows, source, rank, layout, slots)


def require_run(ids: Tensor, start: int, layout: DcpLayout) -> None:
    """What a request table asks of ids as it writes them: slots that the layout hands out, of the
    owners of positions ``start ..``."""
    require_in_layout(ids, layout)
    if not run_is_aligned(ids, layout.dcp_size * layout.interleave, start):
        _require_agreement(ids, layout.shard(0), start)


def require_in_layout(ids: Tensor, layout: DcpLayout) -> None:
    """Raise IndexSpaceError unless each id is a slot that the layout hands out."""
    instead = f"slots below {layout.first_slot} are the padding page, never handed out; {layout}"
    require_within(ids, layout.first_slot, layout.slot_end, "widened slot", instead)


def _checked_stride(ids: Tensor, shard: Shard, start: int) -> Tensor | None:
    """The rows of a run by the stride, None where slot and position disagree. On a CPU a piece of
    the run is taken while its ids are in the cache, where the check has brought them."""
    if not ids.is_cpu or shard.interleave > 1 or shard.dcp_size == 1:
        return _take(ids, shard, start) if _is_aligned(ids, shard.turn, start) else None
    flat, taken = ids.numpy(), []
    for at in range(0, max(len(flat), 1), _PIECE):
        piece = flat[at : at + _PIECE]
        if not _is_aligned_array(piece, shard.turn, start + at):
            return None
        taken.append(_take(piece, shard, start + at))
    return torch.from_numpy(np.concatenate(taken))


def _take(ids: Ids, shard: Shard, start: int) -> Ids:
    if shard.dcp_size == 1:
        return ids
    if shard.interleave == 1:
        return shard.row(ids[(shard.rank - start) % shard.dcp_size :: shard.dcp_size])
    return shard.row(ids[shard.elements(len(ids), start, ids.device)])


def refuse_negative(ids: Tensor) -> None:
    """Raise IndexSpaceError for a negative id: a hole has no owner (package-internal)."""
    if ids.numel() and int(ids.min()) < 0:
        at = int(torch.nonzero(ids < 0)[0])
        raise IndexSpaceError(
            f"a slot must be at least 0: got {int(ids[at])} at index {at}; -1 marks a hole and "
            f"would look owned by the last rank (-1 % c == c - 1); use localize_fixed_shape, "
            f"which keeps holes, or drop them first"
        )


def _require_agreement(ids: Tensor, shard: Shard, start: int) -> None:
    refuse_negative(ids)
    phase = start % shard.turn
    want = shard.owner(torch.arange(phase, phase + len(ids), device=ids.device))
    bad = torch.nonzero(shard.owner(ids) != want).flatten()
    if not len(bad):
        return
    at, c = int(bad[0]), shard.dcp_size
    raise IndexSpaceError(
        f"slot and position must agree about the owner (slot % {c} == position % {c}): slot "
        f"{int(ids[at])} at index {at} has owner {int(shard.owner(ids)[at])}, position "
        f"{start + at} has {int(want[at])}; the run is not one run from position {start} "
        f"(mis-started, joined from ragged runs, or rows already); pass its true start, localize "
        f"each run by itself, or use localize_masked"
    )
