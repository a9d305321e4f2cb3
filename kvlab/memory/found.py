"""Rows of a run without a wait: what the device finds in the ids is read when the copy lands.

How many rows a rank has of a run, and which elements they come from, follows from the positions
alone where slot and position agree about the owner. So the host need not see the ids: a kernel
localizes them, and leaves the first id that breaks a rule in a flag. A bad id gets row 0, of the
padding page, so nothing is read out of bounds meanwhile.

Worked example, c=2, run [8, 9, 11] from position 0, rank 0: rows of elements 0 and 2, [4, 0]; slot
11 has owner 1 and position 2 owner 0, so the flag says 2.
"""

from dataclasses import dataclass, field

from torch import Tensor

from kvlab import ops
from kvlab.errors import IndexSpaceError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots
from kvlab.index.spaces import make_rows

_CLEAR = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The flag of one run: the first element that breaks a rule, or nothing."""

    slots: WidenedSlots
    layout: DcpLayout
    flag: ops.CheckFlag = field(repr=False)

    @property
    def flag_value(self) -> Tensor:
        """int64 ``(1,)`` on the device."""
        return self.flag.value

    def read(self) -> int:
        """The flag as a number; waits for the device."""
        return int(self.flag_value)

    def require(self, value: int) -> None:
        """Errors: IndexSpaceError unless ``value``, read from the flag, says that all ids fit."""
        if value == _CLEAR:
            return
        layout, at = self.layout, value
        raise IndexSpaceError(
            f"a run that is localized without a wait must have slots in [{layout.first_slot}, "
            f"{layout.slot_end}) whose owners are those of its positions: got slot "
            f"{int(self.slots.ids[at])} at index {at}, position {self.slots.start + at} (of "
            f"{len(self.slots)} ids; {layout}); pass its true start, or use wait=True, which "
            f"takes ids in any order"
        )


def localize_unwaited(
    slots: WidenedSlots, layout: DcpLayout, rank: int
) -> tuple[PhysicalRows, Found]:
    """(rows, flag) of a run on its own device; the host waits for nothing.

    The rows are good only if the flag, looked at later, says so. Cost: one read of 8n bytes.
    """
    found = Found(slots, layout, ops.CheckFlag(slots.ids.device))
    shard = layout.shard(rank)
    bounds = (layout.first_slot, layout.slot_end)
    rows = ops.localize_run(slots.ids, shard, slots.start, bounds=bounds, flag=found.flag)
    source = shard.elements(len(slots), slots.start)  # on the host, where a restore compares them
    return make_rows(rows, source, rank, layout, slots), found
