"""Localize: from widened slots to the rows of one rank. Done once, by whoever touches the buffer.

Two formulations, both public because the notebooks compare them:

- ``localize_masked`` keeps the ids whose owner is this rank and divides. Always right.
- ``localize_strided`` takes every ``dcp_size``-th id of the run, beginning where this rank's turn
  begins, and divides. Many times cheaper, and right exactly when slot and position agree about the
  owner: ``ids[i] % c == (start + i) % c`` for every i. Upstream states that as a precondition;
  here ``check=True`` (the default) verifies it.

Worked example, c=2, run [5, 6, 7]: rank 0 owns slot 6, row 3. The stride without a phase would
take slots 5 and 7 and give rows [2, 3]; the phase of start=1 gives [3].

Source: ``maybe_dcp_kernel_indices`` of SGLang (``layers/dcp/layout.py``, PR 39487) is the strided
form with start 0 and without the check; PR 38790 proposed the mask.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.errors import IndexSpaceError
from kvlab.index.layout import DcpLayout, require_int, require_rank, require_turn
from kvlab.index.spaces import (
    PhysicalRows,
    WidenedSlots,
    as_ids,
    make_rows,
    require_within,
)

IntArray = npt.NDArray[np.int64]

# Ids are viewed in lines of about this many for the check: long enough for SIMD, short enough
# that a line of the accumulator stays in the first-level cache.
_LINE = 1024
_SIGN = -(2**63)


def owner_of(ids: Tensor, dcp_size: int, interleave: int = 1) -> Tensor:
    """The owner rank of each slot, int64 ``(n,)``; -1 for a negative id (a hole has no owner)."""
    ids = _checked_ids(ids, dcp_size, interleave)
    return torch.where(ids < 0, -1, ids // interleave % dcp_size)


def row_of(ids: Tensor, dcp_size: int, interleave: int = 1) -> Tensor:
    """The row of each slot in its owner's buffer, int64 ``(n,)``; -1 for a negative id."""
    ids = _checked_ids(ids, dcp_size, interleave)
    return torch.where(ids < 0, -1, _divide(ids, dcp_size, interleave))


def slot_of(rows: Tensor, dcp_size: int, dcp_rank: int, interleave: int = 1) -> Tensor:
    """The slot that ``dcp_rank`` stores in each row, int64 ``(n,)``: inverse of owner and row."""
    require_rank(dcp_size, dcp_rank)
    rows = _checked_ids(rows, dcp_size, interleave)
    end = 2**63 // (dcp_size * interleave) * interleave
    require_within(rows, 0, end, "row", "such a slot exceeds int64")
    return (rows // interleave * dcp_size + dcp_rank) * interleave + rows % interleave


def localize_masked(ids: Tensor, dcp_size: int, dcp_rank: int, interleave: int = 1) -> Tensor:
    """The rows that ``dcp_rank`` holds of ``ids``, in their order: int64 ``(m,)``.

    Right for any ids in any order. Cost: reads 8n bytes several times, and on CUDA a
    synchronisation (m depends on the values). Errors: IndexSpaceError for a negative id.
    """
    source = owned_elements(ids, dcp_size, dcp_rank, interleave)
    return _divide(ids.to(torch.int64)[source], dcp_size, interleave)


def owned_elements(ids: Tensor, dcp_size: int, dcp_rank: int, interleave: int = 1) -> Tensor:
    """The elements of ``ids`` that ``dcp_rank`` stores: int64 ``(m,)``, ascending."""
    require_rank(dcp_size, dcp_rank)
    ids = _checked_ids(ids, dcp_size, interleave)
    refuse_negative(ids)
    return torch.nonzero(ids // interleave % dcp_size == dcp_rank).flatten()


def localize_strided(
    ids: Tensor, dcp_size: int, dcp_rank: int, start: int = 0, *, check: bool = True
) -> Tensor:
    """The rows that ``dcp_rank`` holds of a run of consecutive positions: int64 ``(m,)``.

    Args:
        ids: int64 ``(n,)``, slots of positions ``start .. start+n-1``; any ragged length.
        start: position of ``ids[0]``; sets the phase of the stride.
        check: verify that slot and position agree about the owner. Without it the answer is
            silently wrong for a run that does not.

    Cost: unchecked 8n/c bytes read, checked 8n more. Errors: IndexSpaceError (checked) with the
    first element where slot and position disagree; LayoutError for a bad rank.
    """
    require_rank(dcp_size, dcp_rank)
    require_int("start", start, 0, "the position of ids[0]")
    ids = as_ids(ids, "ids")
    if check and not run_is_aligned(ids, dcp_size, start):
        _refuse_misaligned(ids, dcp_size, start)
    return _take(ids, dcp_size, dcp_rank, start)


def run_is_aligned(ids: Tensor, dcp_size: int, start: int = 0) -> bool:
    """Whether ``ids[i] % c == (start + i) % c`` for all i, with no negative id. Exact.

    Three ways to the same answer. On CPU, for a power-of-two c: OR and AND over lines that are a
    multiple of c long agree with the position's low bits exactly when every id does; two reads
    and no temporary. For another c: ids rise by one but at page breaks, so it is enough to look
    at the ends of each piece. On CUDA: ``(ids - position) % c``, which is what it says, and
    on CPU costs ten times as much. Errors: IndexSpaceError for other than int64 or int32 ``(n,)``.
    """
    require_int("dcp_size", dcp_size, 1, "the number of ranks that share one request's KV")
    require_int("start", start, 0, "the position of ids[0]")
    ids = as_ids(ids, "ids")
    n = ids.numel()
    if n == 0 or dcp_size == 1:
        return n == 0 or int(ids.min()) >= 0
    if ids.device.type != "cpu":
        want = torch.arange(start % dcp_size, start % dcp_size + n, device=ids.device)
        return bool(((ids >= 0) & ((ids - want) % dcp_size == 0)).all())
    flat = ids.contiguous().numpy()
    if dcp_size & (dcp_size - 1) or dcp_size > _LINE:
        breaks = np.flatnonzero(np.diff(flat) != 1)
        heads = np.concatenate(([0], breaks + 1))
        pieces = flat[heads]
        # The last ids too: past 2**63 - 1 a piece wraps into the negative, still rising by one.
        if pieces.min() < 0 or flat[-1] < 0 or (breaks.size and flat[breaks].min() < 0):
            return False
        return bool(((pieces - heads - start % dcp_size) % dcp_size == 0).all())
    width = min(_LINE, n + -n % dcp_size)
    whole = n // width * width
    want_bits = _low_bits(dcp_size, start % dcp_size)
    return (not whole or _agree(flat[:whole].reshape(-1, width), want_bits, dcp_size)) and (
        whole == n or _agree(flat[whole:].reshape(1, -1), want_bits, dcp_size)
    )


@lru_cache(maxsize=64)
def _low_bits(dcp_size: int, phase: int) -> IntArray:
    return (np.arange(_LINE) + phase) & (dcp_size - 1)


def _agree(lines: IntArray, want_bits: IntArray, dcp_size: int) -> bool:
    low = dcp_size - 1
    # Compared as bytes: a few thousand of them, for which each NumPy call costs more than its work.
    want = want_bits[: lines.shape[1]].tobytes()
    # The sign bit survives the OR, so one negative id shows here too.
    ored = (np.bitwise_or.reduce(lines, axis=0) & (low | _SIGN)).tobytes()
    anded = (np.bitwise_and.reduce(lines, axis=0) & low).tobytes()
    return bool(ored == want == anded)


def localize(slots: WidenedSlots, layout: DcpLayout, rank: int) -> PhysicalRows:
    """The rows of ``slots`` in the buffer of ``rank``, each with the element it came from.

    Uses the stride when slot and position agree about the owner (verified), else the mask: a run
    taken from the middle of a page, or several ragged runs joined, is handled right.

    Errors: IndexSpaceError for PhysicalRows (they are localized already), for a negative slot, for
    a slot of this rank in the padding page or past the layout (each rank looks at its own slots:
    an id is in bounds when every rank says so); LayoutError for a rank outside the layout.
    """
    given: object = slots
    if isinstance(given, PhysicalRows):
        as_ids(given, "slots")  # raises, in the caller's words
    if not isinstance(given, WidenedSlots):
        raise IndexSpaceError(
            f"localize takes WidenedSlots, got {type(given).__name__}; wrap the ids: "
            f"WidenedSlots(ids, start=position of the first)"
        )
    require_rank(layout.dcp_size, rank)
    c, ids = layout.dcp_size, slots.ids
    if layout.interleave == 1 and slots.agrees_with_positions(c, run_is_aligned):
        rows = _take(ids, c, rank, slots.start)
        # A run shorter than the phase has nothing of this rank, and arange wants begin <= end.
        first = min((rank - slots.start) % c, len(ids))
        source = torch.arange(first, len(ids), c, device=ids.device)
    else:
        refuse_negative(ids)
        source = owned_elements(ids, c, rank, layout.interleave)
        rows = _divide(ids[source], c, layout.interleave)
    if rows.numel():
        least, most = (int(x) for x in torch.aminmax(rows))
        if least < layout.first_row or most >= layout.row_end:
            require_within(
                ids,
                layout.first_slot,
                layout.slot_end,
                "widened slot",
                f"slots below {layout.first_slot} are the padding page, never handed out; {layout}",
            )
    return make_rows(rows, source, rank, layout, slots)


def _take(ids: Tensor, dcp_size: int, dcp_rank: int, start: int) -> Tensor:
    if dcp_size == 1:
        return ids
    return _divide(ids[(dcp_rank - start) % dcp_size :: dcp_size], dcp_size, 1)


def _divide(ids: Tensor, dcp_size: int, interleave: int) -> Tensor:
    """Slot // c for interleave 1. A shift where it is exact: int64 division is not vectorised."""
    if interleave == 1:
        if dcp_size & (dcp_size - 1):
            return torch.div(ids, dcp_size, rounding_mode="floor")
        return ids >> (dcp_size.bit_length() - 1)
    return ids // (dcp_size * interleave) * interleave + ids % interleave


def _checked_ids(ids: Tensor, dcp_size: int, interleave: int) -> Tensor:
    require_turn(dcp_size, interleave)
    return as_ids(ids, "ids")


def refuse_negative(ids: Tensor) -> None:
    """Raise IndexSpaceError for a negative id: a hole has no owner (package-internal)."""
    if ids.numel() and int(ids.min()) < 0:
        at = int(torch.nonzero(ids < 0)[0])
        raise IndexSpaceError(
            f"a slot must be at least 0: got {int(ids[at])} at index {at}; -1 marks a hole and "
            f"would look owned by the last rank (-1 % c == c - 1); use localize_fixed_shape, "
            f"which keeps holes, or drop them first"
        )


def _refuse_misaligned(ids: Tensor, dcp_size: int, start: int) -> None:
    refuse_negative(ids)
    want = torch.arange(start % dcp_size, start % dcp_size + len(ids), device=ids.device) % dcp_size
    at = int(torch.nonzero(ids % dcp_size != want)[0])
    raise IndexSpaceError(
        f"slot and position must agree about the owner (slot % {dcp_size} == position % "
        f"{dcp_size}): slot {int(ids[at])} at index {at} has owner {int(ids[at]) % dcp_size}, "
        f"position {start + at} has {int(want[at])}; the run is not one run from position {start} "
        f"(mis-started, joined from ragged runs, or rows already); pass its true start, localize "
        f"each run by itself, or use localize_masked"
    )
