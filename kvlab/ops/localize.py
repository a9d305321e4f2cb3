"""Localize a run without asking the device anything: the position alone says how much is whose.

In a run where slot and position agree about the owner (``(id // I) % c == (position // I) % c``),
which elements a rank holds follows from the position alone. Below position e rank r holds
``before(e) = e // (cI) * I + clamp(e % (cI) - rI, 0, I)`` tokens; its g-th token has position
``g // I * cI + rI + g % I``. So the shape of the result needs no look at the ids. That they agree
is checked into a flag that is read later.

Worked example, c=2, I=2, start=3, 5 positions 3 4 5 6 7: rank 1 owns 3, 6 and 7, elements
[0, 3, 4]; ``before(8) - before(3) = 4 - 1 = 3``.
"""

import torch
from torch import Tensor

from kvlab.errors import LayoutError
from kvlab.index import localize_fixed_shape as fixed_shape
from kvlab.index import localize_strided, remap_dcp_local_topk_indices
from kvlab.index.layout import require_int, require_rank, require_turn
from kvlab.index.localize import run_is_aligned
from kvlab.index.spaces import as_id_tensor, as_ids
from kvlab.ops.backend import Backend, choose
from kvlab.ops.flag import CheckFlag


def owned_count(n: int, dcp_size: int, dcp_rank: int, start: int = 0, interleave: int = 1) -> int:
    """How many of positions ``start .. start+n-1`` are ``dcp_rank``'s. Unit: tokens.

    Errors: LayoutError for a negative n or start, a bad rank or interleave.
    """
    _require_run(n, dcp_size, dcp_rank, start, interleave)
    begin, end = (before(e, dcp_size, dcp_rank, interleave) for e in (start, start + n))
    return end - begin


def run_elements(
    n: int,
    dcp_size: int,
    dcp_rank: int,
    start: int = 0,
    interleave: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The elements of a run of n positions from ``start`` that are ``dcp_rank``'s, ascending.

    int64 ``(owned_count,)`` on ``device``. No synchronisation. Errors: as ``owned_count``.
    """
    m = owned_count(n, dcp_size, dcp_rank, start, interleave)
    turn = dcp_size * interleave
    phase = start % turn
    # Only the phase matters, and it keeps the numbers small whatever the start is.
    g = torch.arange(m, device=device) + before(phase, dcp_size, dcp_rank, interleave)
    if interleave == 1:
        return g * dcp_size + (dcp_rank - phase)
    whole = torch.div(g, interleave, rounding_mode="floor")
    return whole * turn + g % interleave + (dcp_rank * interleave - phase)


def localize_run(
    ids: Tensor,
    dcp_size: int,
    dcp_rank: int,
    start: int = 0,
    interleave: int = 1,
    *,
    bounds: tuple[int, int] | None = None,
    flag: CheckFlag | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """The rows that ``dcp_rank`` holds of a run of consecutive positions: int64 ``(m,)``, fresh.

    Args:
        ids: int64 ``(n,)`` (int32 is widened), slots of positions ``start .. start+n-1``.
        start: position of ``ids[0]``.
        bounds: (low, end) of a right slot; None means (0, 2**63 - 1). Only with a flag.
        flag: takes the index of the first id that is out of bounds or disagrees with its position
            about the owner. All n ids are looked at, also those of other ranks. A bad id of this
            rank gives row 0, in the padding page, so nothing later leaves the buffer.

    ``m`` is ``owned_count``. No synchronisation. Without a flag the ids must be right: of a run
    that does not agree with its positions the answer is silently wrong. Cost: 8n/c bytes read and
    8n/c written, with a flag 8n read. Errors: LayoutError for a bad rank, start or bounds;
    IndexSpaceError for other than int ids; BackendError.
    """
    ids = as_ids(ids, "ids")
    _require_run(len(ids), dcp_size, dcp_rank, start, interleave)
    low, end = _require_bounds(bounds, flag)
    if choose(backend, ids, *([] if flag is None else [flag.value])) == "triton":
        from kvlab.ops.kernels import localize as twin

        m = owned_count(len(ids), dcp_size, dcp_rank, start, interleave)
        return twin.localize_run(ids, m, dcp_size, dcp_rank, start, interleave, (low, end), flag)
    turn = dcp_size * interleave
    if flag is not None and ids.device.type == "cpu" and _is_right(ids, turn, start, low, end):
        flag = None  # nothing to note: two fast passes found no bad id
    if flag is None and interleave == 1:
        rows = localize_strided(ids, dcp_size, dcp_rank, start, check=False)
        return rows.clone() if rows.data_ptr() == ids.data_ptr() else rows
    mine = run_elements(len(ids), dcp_size, dcp_rank, start, interleave, ids.device)
    own = ids[mine]
    rows = torch.div(own, turn, rounding_mode="floor") * interleave + own % interleave
    if flag is None:
        return rows
    position = torch.arange(start % turn, start % turn + len(ids), device=ids.device)
    owner = torch.div(position, interleave, rounding_mode="floor") % dcp_size
    named = torch.div(ids, interleave, rounding_mode="floor") % dcp_size
    bad = (ids < low) | (ids >= end) | (named != owner)
    flag.lower(bad)
    return torch.where(bad[mine], 0, rows)


def localize_fixed_shape(
    ids: Tensor,
    dcp_size: int,
    dcp_rank: int,
    interleave: int = 1,
    hole: int = -1,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """The row of each owned id, ``hole`` elsewhere: int64, the shape ``(n,)`` of ``ids``.

    Negative ids are holes on every rank. No synchronisation; a CUDA graph can capture it. Errors:
    as ``kvlab.index.localize_fixed_shape``, which is the reference; BackendError.
    """
    ids = as_ids(ids, "ids")
    if choose(backend, ids) == "torch":
        return fixed_shape(ids, dcp_size, dcp_rank, interleave, hole)
    from kvlab.ops.kernels import localize as twin

    require_rank(dcp_size, dcp_rank)
    require_turn(dcp_size, interleave)
    require_int("hole", hole, -1, "a hole (-1) or a row of the padding page")
    return twin.localize_fixed_shape(ids, dcp_size, dcp_rank, interleave, hole)


def remap_topk(
    topk: Tensor, dcp_size: int, dcp_rank: int, *, backend: Backend | None = None
) -> Tensor:
    """Global top-k ids to this rank's rows, survivors in front in their order, then -1.

    ``topk`` int64 or int32 ``(..., k)``; same shape out, int64. No synchronisation. Errors: as
    ``kvlab.index.remap_dcp_local_topk_indices``, which is the reference; BackendError.
    """
    topk = as_id_tensor(topk, "topk")
    if topk.dim() == 0 or choose(backend, topk) == "torch":
        return remap_dcp_local_topk_indices(topk, dcp_size, dcp_rank)
    from kvlab.ops.kernels import topk as twin

    require_rank(dcp_size, dcp_rank)
    return twin.remap_topk(topk, dcp_size, dcp_rank)


def before(end: int, dcp_size: int, dcp_rank: int, interleave: int) -> int:
    """Positions below ``end`` that are ``dcp_rank``'s (package-internal)."""
    turns, broken = divmod(end, dcp_size * interleave)
    return turns * interleave + min(max(broken - dcp_rank * interleave, 0), interleave)


def _is_right(ids: Tensor, turn: int, start: int, low: int, end: int) -> bool:
    """Whether no id of a run on the host is bad; False also where only a longer look can tell.

    Equal places in the turn of c I are more than equal owners, and runs on whole pages have them.
    """
    if not ids.numel():
        return True
    least, most = torch.aminmax(ids)
    return low <= int(least) and int(most) < end and run_is_aligned(ids, turn, start)


def _require_run(n: int, dcp_size: int, dcp_rank: int, start: int, interleave: int) -> None:
    require_rank(dcp_size, dcp_rank)
    require_turn(dcp_size, interleave)
    require_int("n", n, 0, "a token count")
    require_int("start", start, 0, "the position of ids[0]")


def _require_bounds(bounds: tuple[int, int] | None, flag: CheckFlag | None) -> tuple[int, int]:
    if bounds is None:
        return 0, 2**63 - 1
    if flag is None:
        raise LayoutError(
            f"bounds are checked into a flag: got bounds={bounds} and no flag; pass "
            f"flag=CheckFlag(ids.device), or leave the bounds out"
        )
    low, end = bounds
    require_int("bounds[0]", low, 0, "the lowest slot that is right")
    require_int("bounds[1]", end, low, "one past the highest slot that is right")
    return low, end
