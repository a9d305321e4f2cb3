"""Back up and restore one request on several ranks as one act: all of it, or nothing that is lost.

A backup that fails on one rank gives back what the ranks before it took. A restore is checked on
every rank before the first one writes, and no backup is spent before every rank has written: after
an error in the middle the same backups can be restored again. Recurrent state is whole on every
rank, so one copy of it travels, with the first backup.
"""

from collections.abc import Sequence

from kvlab.errors import BackupError
from kvlab.index import PhysicalRows, WidenedSlots
from kvlab.memory.backup import KvBackup
from kvlab.memory.pool import MLATokenToKVPool
from kvlab.memory.state_pool import StatePool
from kvlab.memory.transfer import PendingCopy


def back_up_ranks(
    pools: Sequence[MLATokenToKVPool],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
    wait: bool = True,
) -> list[KvBackup]:
    """One backup a pool; the first carries the state, if a slot of ``states`` is named.

    The ranks' copies run side by side where they are staged; ``wait=False`` returns while they are
    in flight (the state, which is small, has been copied). No pool is changed. Errors: as the
    pools' own ``get_cpu_copy``, and BackupError for a slot without ``states``; then no host memory
    is held.
    """
    _require_states(states, state_slot)
    state = None
    if states is not None and state_slot is not None:
        state = states.get_cpu_copy(state_slot)
    made: list[KvBackup] = []
    try:
        for pool in pools:
            made.append(pool.get_cpu_copy(slots, wait=False))
        for backup in made if wait else []:  # begun on every rank before any is waited for
            backup.wait()
    except BaseException:
        for backup in made:
            if not backup.spent:  # one that was lost has given its memory back
                backup.discard()
        raise
    if made:
        made[0].state = state
    return made


def restore_ranks(
    pools: Sequence[MLATokenToKVPool],
    backups: Sequence[KvBackup],
    slots: WidenedSlots | PhysicalRows,
    states: StatePool | None = None,
    state_slot: int | None = None,
) -> None:
    """Write each pool's backup into newly allocated slots, and the state into its slot.

    The ranks' copies run side by side where they are staged.

    Errors: BackupError when state was backed up and no slot is named, or the other way round, and
    as the pools' own ``load_cpu_copy``; then nothing was written. BackupError for a host copy that
    changed, after rows were written and before the state is, or any backup is consumed.
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
    _require_states(states, state_slot)
    if states is not None and state is not None and state_slot is not None:
        states.check_load(state, state_slot)
    rows = [pool.check_load(backup, slots) for pool, backup in zip(pools, backups, strict=True)]
    copies: list[PendingCopy] = []
    try:
        for pool, backup, places in zip(pools, backups, rows, strict=True):
            copies.append(pool.write_rows(backup, places))
        for copy in copies:
            copy.wait()
    except BaseException:
        for copy in copies:  # nothing is written behind the back of who tries again
            copy.settle()
        raise
    if states is not None and state is not None and state_slot is not None:
        states.load_cpu_copy(state, state_slot)
    for backup in backups:
        backup.close("restored")


def _require_states(states: StatePool | None, state_slot: int | None) -> None:
    """A slot that names a state of no pool would be dropped without a word."""
    if states is None and state_slot is not None:
        raise BackupError(
            f"a state slot names a state of a StatePool: got state_slot={state_slot!r} and no "
            f"states; pass the pool that keeps it, or no slot; nothing was changed"
        )
