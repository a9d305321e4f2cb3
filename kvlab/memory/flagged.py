"""Writes whose ids the host does not wait for: the kernel that stores them looks at them too.

A pool on the CPU looks through the ids first, and a bad one raises before anything is stored. On a
GPU that look would make the host wait for everything queued before, once a layer and step. There
the kernel stores what it owns, leaves the first bad id in a flag, and the flag is read where the
host waits anyway: at a backup, a restore, an audit.
"""

import torch
from torch import Tensor

from kvlab import ops
from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout
from kvlab.memory.codec import RowCodec
from kvlab.memory.plans import require_part


class FlaggedWrites:
    """The writes of one pool: ``rank`` of ``layout``, in its own view of both (a replicated pool
    is rank 0 of one). Not for a pool behind a page table."""

    def __init__(self, layout: DcpLayout, rank: int, device: torch.device) -> None:
        self.layout, self.rank = layout, rank
        self.flag = ops.CheckFlag(device)

    def store(self, layer: Tensor, ids: Tensor, first: Tensor, second: Tensor) -> None:
        """Store the rows, in two parts as ``stored_parts`` gives them, of this rank's ids in
        ``layer`` ``(R, width)``; the others are stored by nobody. No synchronisation."""
        layout = self.layout
        ops.set_mla_kv_buffer(
            layer,
            ids,
            first,
            second,
            layout.shard(self.rank),
            first_slot=layout.first_slot,
            slot_end=layout.slot_end,
            flag=self.flag,
        )

    def require(self) -> None:
        """Wait for the writes. Errors: IndexSpaceError when one since the last look had a bad id;
        it is told once."""
        at = self.flag.read()
        if at is None:
            return
        self.flag.clear()
        raise IndexSpaceError(
            f"write slot must lie in [-1, {self.layout.slot_end}): the id at index {at} of an "
            f"earlier write did not, and was stored by nobody; write ids are widened slots, -1 is "
            f"a hole; look at the ids of the writes since the last backup, restore or audit"
        )

    def audit(self) -> list[str]:
        """The broken law: all writes named slots of the layout, or holes."""
        at = self.flag.read()
        if at is None:
            return []
        return [f"a write named a slot outside [-1, {self.layout.slot_end}), at index {at}"]


def stored_parts(
    k_nope: Tensor,
    k_rope: Tensor,
    n: int,
    widths: tuple[int, int],
    codec: RowCodec,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """All ``n`` rows as they are stored, in two parts that make a row of the buffer. Parts that are
    on ``device`` and of the stored dtype are passed on as they are: nothing is copied before the
    kernel. Errors: as ``plans.pack_rows``."""
    parts = []
    for name, part, width in zip(("k_nope", "k_rope"), (k_nope, k_rope), widths, strict=True):
        require_part(name, part, n, width)
        # A pool holds values, not the graph that made them.
        part = part.detach().to(device, codec.taken)
        parts.append(part if part.stride(1) == 1 or width < 2 else part.contiguous())
    if not codec.scaled:
        return parts[0].view(codec.stored), parts[1].view(codec.stored)
    rows = codec.encode(torch.cat(parts, dim=1))  # a scale is that of the whole row
    return rows[:, : widths[0]], rows[:, widths[0] :]
