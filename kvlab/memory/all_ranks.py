"""Back up and restore one request on several ranks as one act: all of it, or nothing that is lost.

A backup that fails on one rank gives back what the ranks before it took. A restore is checked on
every rank before the first one writes, and no backup is spent before every rank has written: after
an error in the middle the same backups can be restored again. Recurrent state is whole on every
rank, so one copy of it travels, with the first backup.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvlab.errors import BackupError
from kvlab.index import PhysicalRows, WidenedSlots
from kvlab.memory.backup import KvBackup
from kvlab.memory.mla_pool import MLATokenToKVPool
from kvlab.memory.state_pool import StatePool


def back_up_ranks(
    pools: Sequence[MLATokenToKVPool],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
) -> list[KvBackup]:
    """One backup a pool; the first carries the state, if a slot of ``states`` is named.

    No pool is changed. Errors: as the pools' own ``get_cpu_copy``; then no host memory is held.
    """
    state = None
    if states is not None and state_slot is not None:
        state = states.get_cpu_copy(state_slot)
    made: list[KvBackup] = []
    try:
        for pool in pools:
            made.append(pool.get_cpu_copy(slots))
    except BaseException:
        for backup in made:
            backup.discard()
        raise
    return [replace(backup, state=None if i else state) for i, backup in enumerate(made)]


def restore_ranks(
    pools: Sequence[MLATokenToKVPool],
    backups: Sequence[KvBackup],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
) -> None:
    """Write each pool's backup into newly allocated slots, and the state into its slot.

    Errors: BackupError when state was backed up and no slot is named, or the other way round, and
    as the pools' own ``load_cpu_copy``; then nothing was written.
    """
    if len(backups) != len(pools) or not backups:
        raise BackupError(
            f"each rank restores its own backup: got {len(backups)} backups for {len(pools)} "
            f"ranks; pass all that back_up_ranks gave; nothing was written"
        )
    state = backups[0].state
    if (state is None) != (state_slot is None):
        raise BackupError(
            f"rows and state of a request are restored together: the backup has "
            f"{'no' if state is None else 'a'} state, state_slot is {state_slot}; "
            f"nothing was written"
        )
    if states is not None and state is not None and state_slot is not None:
        states.check_load(state, state_slot)
    rows = [
        pool.check_load(replace(backup, state=None), slots)
        for pool, backup in zip(pools, backups, strict=True)
    ]
    for pool, backup, places in zip(pools, backups, rows, strict=True):
        pool.write_rows(backup, places)
    if states is not None and state is not None and state_slot is not None:
        states.load_cpu_copy(state, state_slot)
    for backup in backups:
        backup.close("restored")
