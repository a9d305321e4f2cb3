"""Exercises of 07_what_it_costs: bytes, seconds, a replicated index, break-even, host memory."""

import math
from fractions import Fraction
from typing import Any

import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens
from kvlab.memory import ModelGeometry
from kvlab.teach.draw import Draw, Inputs
from kvlab.teach.exercise import Miss, need, task, whole


def backup_bytes(
    tokens: int, c: int, rank: int, layers: int, latent: int, rope: int, item: int
) -> int:
    """One row a token and layer; the rank has every c-th token, the first ranks one more."""
    rows = tokens // c + (rank < tokens % c)
    return rows * layers * (latent + rope) * item


def _geometry(d: Draw) -> Inputs:
    c = d.c
    tokens = d.randint(1, 10) if d.size < 3 else d.randint(1, 300_000)
    layers = d.pick(range(1, 4), range(4, 62))
    latent, rope = d.pick((4, 8), (128, 256, 512)), d.pick((1, 2), (32, 64))
    return tokens, c, d.randrange(c), layers, latent, rope, d.choice([1, 2, 4])


@task(grade=2, answer=backup_bytes, example=(1001, 8, 0, 7, 512, 64, 2), make=_geometry)
def bytes_of_a_backup(
    tokens: int, c: int, rank: int, layers: int, latent: int, rope: int, item: int
) -> int:
    """How many bytes does a rank save?

    An MLA model keeps one row of latent + rope elements a token and layer, `item` bytes an element.
    A request with KV for positions 0 .. tokens-1 is backed up on c ranks. How many bytes does rank
    `rank` copy?
    Hint: key and value are one row; 1001 tokens on 8 ranks are 126 on rank 0, 125 on others
    Source: the public configs of the models (data/models/geometry.csv).
    """
    model = ModelGeometry("model", layers, layers, 0, latent, rope, "drawn")
    rows = int(get_dcp_lens(torch.tensor(tokens), Shard(c, rank)))
    return rows * model.bytes_per_token({1: "fp8", 2: "bf16", 4: "fp32"}[item])


def seconds(tokens: int, c: int, token_bytes: int, gb_per_s: float) -> float:
    """The slowest rank decides, and it holds the tokens of a broken turn too."""
    return -(-tokens // c) * token_bytes / (gb_per_s * 1e9)


def _copy(d: Draw) -> Inputs:
    tokens = d.pick(range(1, 11), range(1, 10**5))
    token_bytes = d.pick((10**9,), range(10**4, 10**6, 10**4))
    return tokens, d.c, token_bytes, d.choice([1.0, 2.0, 10.0, 25.0, 55.0])


@task(grade=2, answer=seconds, example=(100_001, 8, 70_272, 25.0), make=_copy)
def bandwidth_floor(tokens: int, c: int, token_bytes: int, gb_per_s: float) -> float:
    """The floor of a backup's time.

    A request of `tokens` positions is backed up. Each of the c ranks copies what it owns over a
    link of its own, gb_per_s GB a second (1 GB = 10**9 bytes); one token has token_bytes bytes in
    all layers. Nothing can be faster than the link. After how many seconds, at least, has the last
    rank finished?
    Hint: which rank holds most, and how many tokens is that?
    """
    most = max(int(get_dcp_lens(torch.tensor(tokens), Shard(c, rank))) for rank in range(c))
    return most * token_bytes / gb_per_s / 10**9


def tokens_that_fit(budget: int, c: int, P: int, row: int, index: int) -> int:
    """A page costs P latent rows, and P * c entries of the index, since every rank has them all."""
    pages = budget // (P * row + P * c * index)
    return (pages - 1) * P * c


def _budget(d: Draw) -> Inputs:
    c, P, size = d.c, d.P, d.size
    row, index = d.randint(2, 9) * 4**size, d.randint(1, 3) * 3**size
    page = P * row + P * c * index
    return d.randint(2, 4 + 10 * size) * page + d.randrange(page), c, P, row, index


@task(grade=3, answer=tokens_that_fit, example=(1000, 2, 4, 10, 3), make=_budget, core=False)
def replicated_index(budget: int, c: int, P: int, row: int, index: int) -> int:
    """What an index on every rank costs.

    A rank has `budget` bytes for its cache. Of each page it keeps P latent rows of `row` bytes, its
    own share; and it keeps the index entries (`index` bytes each) of *all* tokens of the widened
    page, P * c of them. Whole pages only, and one of them is the padding page, which has index
    entries too. How many tokens do the c ranks hold together?
    Hint: first the bytes of one page on one rank; then whole pages; then take one off
    Source: SGLang issue 31821 (2,292,288 tokens a rank become 4,252,416 at DCP 2).
    """
    layout = DcpLayout(c, P, 1)
    while layout.rows_per_rank * row + layout.slot_end * index <= budget:
        layout = DcpLayout(c, P, layout.num_pages + 1)
    return layout.capacity_tokens - P * c


def smallest(token_bytes: int, c: int, mb_per_s: int, fixed_us: int, prefill_per_s: int) -> int:
    """Each token must win back its share of two fixed costs."""
    copy_us = 2 * token_bytes / c / mb_per_s  # 1 MB/s is one byte a microsecond
    gain_us = 1e6 / prefill_per_s - copy_us
    return math.floor(2 * fixed_us / gain_us) + 1 if gain_us > 0 else -1


def _tie(d: Draw) -> Inputs:
    """Copying wins back a whole number of microseconds a token, or none: exact in floats too."""
    per_token, gain = d.choice([25, 50, 100, 200, 500]), d.choice([-1, 0, 0, 1, 2, 4])
    c, mb_per_s = d.pick((2, 4), (2, 4, 6, 8, 16)), d.pick(range(1, 5), _LINKS)
    fixed_us = 2 * d.pick(range(50, 451), range(5, 2501))
    return (per_token - gain) * c // 2 * mb_per_s, c, mb_per_s, fixed_us, 10**6 // per_token


_LINKS = range(2000, 61_000, 1000)


def _node(d: Draw) -> Inputs:
    if d.random() < 0.2:
        return _tie(d)
    while True:
        token_bytes = d.choice([8, 70]) * d.pick((1,), (1000,)) + d.randrange(9)
        c, mb_per_s = d.c, d.pick(range(1, 5), _LINKS)
        fixed_us = d.pick(range(100, 901), range(10, 5001))
        prefill_per_s = d.choice([2, 5, 10, 20, 40, 80, 200]) * 1000
        gain = 1e6 / prefill_per_s - 2 * token_bytes / c / mb_per_s
        even = 2 * fixed_us / gain if gain else 0.5
        # Not so close to a whole number that rounding decides.
        if abs(gain) > 1e-6 and abs(even - round(even)) > 1e-6 and even < 10**7:
            return token_bytes, c, mb_per_s, fixed_us, prefill_per_s


@task(grade=3, answer=smallest, example=(8064, 8, 25_000, 500, 20_000), make=_node, core=False)
def break_even(token_bytes: int, c: int, mb_per_s: int, fixed_us: int, prefill_per_s: int) -> int:
    """Copy it, or compute it again?

    A retracted request of n tokens can be copied to the host and back: two copies, each of fixed_us
    microseconds and then, on every rank at once, n * token_bytes / c bytes at mb_per_s (1 MB =
    10**6 bytes). Or it can be prefilled again, prefill_per_s tokens a second. Return the smallest
    whole n >= 1 for which copying is strictly faster, or -1 if there is none.
    Hint: what does one more token cost each way? The two fixed costs must be won back
    """
    copied, computed = Fraction(2 * token_bytes, c * mb_per_s), Fraction(10**6, prefill_per_s)
    return int(2 * fixed_us / (computed - copied)) + 1 if copied < computed else -1


class RankBackups:
    """Host memory of at most capacity bytes, from which the ranks of a node take their copies."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lent: list[int] = []

    def back_up(self, sizes: list[int]) -> bool:
        """Take one block a rank; False when the host has no room, and the request is aborted."""
        for size in sizes:
            if sum(self.lent) + size > self.capacity:
                return False
            self.lent.append(size)
        return True

    def give_back(self, sizes: list[int]) -> None:
        """The request came back: its blocks are free again."""
        for size in sizes:
            self.lent.remove(size)


def expose_host(capacity: int, c: int) -> tuple[list[int], list[int]]:
    """The first rank gets the whole host, the second nothing; what the first took stays taken."""
    return [capacity] * c, [1] + [0] * (c - 1)


@task(
    grade=4,
    answer=expose_host,
    example=(10, 2),
    make=lambda d: (_capacity(d), d.c),
    code=(RankBackups,),
    core=False,
    find=True,
)
def a_full_host(
    answer: Any, capacity: int, c: int, suspect: type[RankBackups] = RankBackups
) -> str:
    """What a declined backup leaves behind.

    Each rank of a node takes a block of the host memory below. When the host is full the request is
    aborted. Return (first, second): the sizes of two requests, one a rank, such that the first is
    declined, and the second is declined although it fits the host (its sizes add up to `capacity`
    at most) and no backup is there.
    Hint: what do the ranks before the one that was declined hold, and who gives it back?
    """
    meant = f"two requests are meant, each with {c} sizes, whole numbers of bytes, one a rank"
    need(isinstance(answer, list) and len(answer) == 2, meant)
    first, second = (whole(sizes, meant) for sizes in answer)
    need(len(first) == len(second) == c and min(*first, *second) >= 0, meant)
    need(sum(second) <= capacity, f"the second request has {sum(second)} bytes: it never fits")
    host = suspect(capacity)
    need(not host.back_up(first), "the first request fits: nothing was declined")
    left = sum(host.lent)
    fits = host.back_up(second)
    need(not fits, f"the second request fits beside the {left} bytes that are lent")
    return f"nobody has a backup, {left} of {capacity} bytes are lent for ever"


class ReusingArena:
    """Host memory of at most capacity bytes, in blocks that are kept and lent again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lent: list[int] = []
        self.idle: list[int] = []

    def take(self, size: int) -> int | None:
        """The bytes of a block that holds size, or None when the bound would be passed."""
        fitting = [block for block in self.idle if block >= size]
        if fitting:
            block = min(fitting)
            self.idle.remove(block)
        elif sum(self.lent) + size <= self.capacity:
            block = size
        else:
            return None
        self.lent.append(block)
        return block

    def give(self, block: int) -> None:
        """Take a block back, for the next backup."""
        self.lent.remove(block)
        self.idle.append(block)

    def audit(self) -> bool:
        """Whether all blocks together keep the bound."""
        return sum(self.lent) + sum(self.idle) <= self.capacity


def expose_arena(capacity: int) -> list[int]:
    """A block that waits is too small for the next backup, and is not dropped either."""
    return [1, -1, capacity]


def _capacity(d: Draw) -> int:
    return d.randint(4, 20) if d.size < 3 else d.number(10)


@task(
    grade=5,
    answer=expose_arena,
    example=(10,),
    make=lambda d: (_capacity(d),),
    code=(ReusingArena,),
    find=True,
)
def arena_over_its_bound(
    answer: Any, capacity: int, suspect: type[ReusingArena] = ReusingArena
) -> str:
    """Find the bug in this arena.

    The host arena below keeps blocks that were given back and lends them again. Its law: blocks
    that are lent and blocks that wait together never exceed `capacity`. Return a list of whole
    numbers that breaks it: n > 0 takes a block for n bytes (at most `capacity`), -k gives back the
    block of the k-th take.
    Hint: look at the line that compares with the capacity: which blocks does it count?
    """
    meant = "a list of whole numbers is meant, none of them 0"
    arena, blocks, told = suspect(capacity), list[int | None](), "nothing"
    for x in whole(answer, meant):
        need(x != 0, meant)
        need(x <= capacity, f"a backup of {x} bytes fits no arena of {capacity}")
        if x > 0:
            blocks.append(arena.take(x))
        else:
            block = blocks[-x - 1] if -x <= len(blocks) else None
            need(block is not None, f"{x} gives back a block that is not lent")
            arena.give(block or 0)
            blocks[-x - 1] = None
        told = f"after {x}: {arena.lent} lent and {arena.idle} idle"
        if not arena.audit():
            return f"{told} are more than {capacity} bytes"
    raise Miss(f"{told}: the bound of {capacity} is kept")
