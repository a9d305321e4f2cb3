"""A backup that does not belong is refused before a byte is written, and can still be used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvlab.errors import BackupError, IndexSpaceError, KvlabError, RankMismatchError
from kvlab.index import DcpLayout, PhysicalRows, WidenedSlots, localize
from kvlab.memory import HostArena, KvBackup, MLATokenToKVPool

from .support import DTYPES, KINDS, bits, ids, make_pools, scramble, untouched

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19, rows 2..9
OLD = WidenedSlots(torch.arange(4, 11))
NEW = WidenedSlots(torch.arange(12, 19))


def backed_up(kind: str = "sharded", rank: int = 1) -> tuple[list[MLATokenToKVPool], KvBackup]:
    pools = make_pools(LAYOUT, kind)
    scramble(pools, seed=1)
    return pools, pools[rank].get_cpu_copy(OLD)


def refused(
    pool: MLATokenToKVPool,
    backup: KvBackup,
    slots: WidenedSlots | PhysicalRows,
    error: type[KvlabError],
    text: str,
) -> None:
    """The restore raises; buffer, arena and backup stay as they were."""
    unchanged, spent = untouched([pool]), backup.spent
    with pytest.raises(error, match=text):
        pool.load_cpu_copy(backup, slots)
    unchanged()
    assert backup.spent == spent


@pytest.mark.parametrize(
    ("slots", "error", "text"),
    [
        (
            WidenedSlots(torch.arange(12, 18)),
            BackupError,
            r"^a backup is restored where it belongs: its position count is 7, the place's is 6; "
            r"allocate as many slots as it has; nothing was written$",
        ),
        # One more slot that is another rank's: this rank's row count would match.
        (WidenedSlots(torch.arange(12, 20)), BackupError, r"position count is 7, the place's is 8"),
        (
            WidenedSlots(NEW.ids, start=4),
            BackupError,
            r"its first position is 0, the place's is 4; pass the slots of the same positions",
        ),
        # As many slots, but two of them another rank's where the backup has its own.
        (
            WidenedSlots(ids([12, 14, 16, 18, 13, 15, 4])),
            BackupError,
            r"row counts must match on both sides: backup \(2, 3, 3\) torch\.float32, place "
            r"\(2, 2, 3\) torch\.float32 \(layers, rows, elements\); nothing was written",
        ),
        (
            WidenedSlots(ids([12, 13, 14, 13, 16, 17, 18])),
            BackupError,
            r"each position needs a row of its own: 3 rows, 2 different; pass newly allocated",
        ),
        # Rank 1 has as many rows of these, but slot 13 is of position 0 and not of position 1.
        (
            WidenedSlots(ids([13, 12, 15, 14, 17, 16, 18])),
            BackupError,
            r"a row goes back to its own position: row 0 of the backup is of position 1, of the "
            r"place of position 0; new slots must have the owners of the old ones",
        ),
        (WidenedSlots(torch.arange(15, 22)), IndexSpaceError, r"\[4, 20\): got 20 at index 5"),
        (WidenedSlots(torch.arange(0, 7)), IndexSpaceError, r"\[4, 20\): got 0 at index 0; 4 of 7"),
        (WidenedSlots(torch.arange(-1, 6)), IndexSpaceError, r"got -1 at index 0; -1 marks a hole"),
        (NEW.ids, IndexSpaceError, r"localize takes WidenedSlots, got Tensor; wrap the ids"),
        (localize(NEW, LAYOUT, 0), RankMismatchError, r"rows of rank 0 .* cannot index the pool o"),
        (
            localize(NEW, DcpLayout(2, 2, 5), 1),
            RankMismatchError,
            r"rows of rank 1 \(DcpLayout\(dcp_size=2, page_size=2, num_pages=5, interleave=1\)\) "
            r"cannot index the pool of rank 1 .*num_pages=4.*; each rank localizes for itself",
        ),
        (
            PhysicalRows.assume_physical(ids([6, 7, 8]), LAYOUT, 1),
            BackupError,
            r"position count is 7, the place's is 3",
        ),
    ],
)
def test_a_place_that_does_not_fit_is_refused(
    slots: Any, error: type[KvlabError], text: str
) -> None:
    pools, backup = backed_up()
    refused(pools[1], backup, slots, error, text)
    pools[1].load_cpu_copy(backup, NEW)  # and what fits still works


def test_rows_of_the_padding_page_are_not_restored_into() -> None:
    pools, _ = backed_up()
    backup = pools[1].get_cpu_copy(PhysicalRows.assume_physical(ids([5, 6, 7]), LAYOUT, 1))
    padding = PhysicalRows.assume_physical(ids([5, 1, 7]), LAYOUT, 1)
    refused(pools[1], backup, padding, BackupError, r"past the padding page of 2 rows: got row 1;")


@pytest.mark.parametrize("kind", ["sharded", "resolved"])
def test_another_ranks_backup_is_refused(kind: str) -> None:
    pools, backup = backed_up(kind)
    text = r"its rank is 1, the place's is 0; each rank restores its own backup"
    refused(pools[0], backup, NEW, BackupError, text)


def test_another_kind_of_pool_is_refused() -> None:
    for made_in in KINDS:
        for place in set(KINDS) - {made_in}:
            _, backup = backed_up(made_in)
            text = r"its (layout|space) is .*, the place's is .*; restore it into (a pool|the kind)"
            refused(make_pools(LAYOUT, place)[1], backup, NEW, BackupError, text)


@pytest.mark.parametrize(
    "layout",
    [DcpLayout(2, 2, 5), DcpLayout(2, 1, 9), DcpLayout(4, 2, 4), DcpLayout(2, 2, 4, interleave=2)],
    ids=str,
)
def test_another_layout_is_refused(layout: DcpLayout) -> None:
    _, backup = backed_up()
    slots = WidenedSlots(torch.arange(layout.first_slot, layout.first_slot + 7))
    text = r"its layout is DcpLayout\(.*restore it into a pool"
    refused(make_pools(layout)[1], backup, slots, BackupError, text)


def test_another_dtype_is_refused_also_where_the_bytes_would_fit() -> None:
    # Both float8 formats are stored as uint8: shape and storage dtype are equal.
    for made in DTYPES:
        for place in set(DTYPES) - {made}:
            backup = make_pools(LAYOUT, dtype=made)[1].get_cpu_copy(OLD)
            text = rf"row format is 2 \+ 1 {made}, the place's is 2 \+ 1 {place}; the same bytes"
            refused(make_pools(LAYOUT, dtype=place)[1], backup, NEW, BackupError, text)


@pytest.mark.parametrize("how", ["restored", "discarded"])
def test_a_backup_is_consumed_once(how: str) -> None:
    (_, pool), backup = backed_up()
    if how == "restored":
        pool.load_cpu_copy(backup, NEW)
    else:
        backup.discard()
    assert backup.spent
    other = pool.get_cpu_copy(OLD)  # has the memory of the spent one now
    text = rf"consumed once: this one \(7 positions of rank 1\) was {how}; back the request up ag"
    refused(pool, backup, NEW, BackupError, text)
    with pytest.raises(BackupError, match=text):
        backup.discard()
    assert pool.host.lent_bytes > 0
    pool.load_cpu_copy(other, NEW)


def flip(kv: torch.Tensor) -> None:
    kv.view(torch.uint8)[1, 2, 3] ^= 1


def swap_layers(kv: torch.Tensor) -> None:
    kv.copy_(kv.flip(0).clone())


def lose(kv: torch.Tensor) -> None:
    kv[0, 1] = 0


def double(kv: torch.Tensor) -> None:
    kv[0, 1] = kv[0, 0]


@pytest.mark.parametrize("harm", [flip, swap_layers, lose, double])
def test_a_host_copy_that_changed_is_not_restored(harm: Callable[[torch.Tensor], None]) -> None:
    (_, pool), backup = backed_up()
    harm(backup.kv)
    others = torch.ones(pool.buffer.shape[1], dtype=torch.bool)
    others[pool.resolve(NEW).ids] = False
    before = pool.buffer[:, others].clone()
    text = (
        r"^the host copy changed since it was made: checksum [0-9a-f]{32}, expected "
        rf"{backup.checksum} \(3 rows\); it was written to the new rows, which hold no request: "
        r"free their slots, discard the backup, recompute the request$"
    )
    for _ in range(2):
        with pytest.raises(BackupError, match=text):
            pool.load_cpu_copy(backup, NEW)
        assert not backup.spent
    assert torch.equal(bits(pool.buffer[:, others]), bits(before))
    backup.discard()
    assert pool.host.lent_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_arena_declines_and_leaves_all_as_it_was(kind: str) -> None:
    arena = HostArena(capacity_bytes=256, grain=64)
    pools = make_pools(LAYOUT, kind, host=arena)
    scramble(pools, seed=1)
    first = pools[1].get_cpu_copy(OLD)
    size = {"sharded": 192, "resolved": 192, "replicated": 384}[kind]
    unchanged = untouched(pools)
    text = (
        rf"^a backup must fit the host arena: {size} bytes for 16 positions of rank 0, in blocks "
        rf"of 64; {arena.lent_bytes} of 256 bytes are lent; restore or discard backups, or raise "
        r"capacity_bytes; nothing was changed$"
    )
    big = WidenedSlots(torch.arange(4, 20))
    with pytest.raises(BackupError, match=text):
        pools[0].get_cpu_copy(big)
    unchanged()
    pools[1].load_cpu_copy(first, NEW)
    if kind != "replicated":  # now there is room
        pools[0].get_cpu_copy(big).discard()


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_backed_up_takes_nothing(kind: str) -> None:
    pool = make_pools(LAYOUT, kind)[1]
    unchanged = untouched([pool])
    wrong: Any
    for wrong in (OLD.ids, [4, 5], None, WidenedSlots(ids([3])), WidenedSlots(ids([21]))):
        with pytest.raises(IndexSpaceError):
            pool.get_cpu_copy(wrong)
    unchanged()
