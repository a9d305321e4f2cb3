"""Exercises of 07_what_it_costs: bytes, seconds, a replicated index, break-even, host memory."""

import math
from fractions import Fraction
from random import Random

import torch

from kvlab.index import DcpLayout, Shard, get_dcp_lens
from kvlab.memory import ModelGeometry
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs
from kvlab.teach.suspects import RankBackups, ReusingArena, arena_exposes, leak_exposes

NOTEBOOK = "07_what_it_costs"


def backup_bytes(
    tokens: int, c: int, rank: int, layers: int, latent: int, rope: int, item: int
) -> int:
    """One row a token and layer; the rank has every c-th token, the first ranks one more."""
    rows = tokens // c + (rank < tokens % c)
    return rows * layers * (latent + rope) * item


def _backup_bytes(
    tokens: int, c: int, rank: int, layers: int, latent: int, rope: int, item: int
) -> int:
    model = ModelGeometry("model", layers, layers, 0, latent, rope, "drawn")
    rows = int(get_dcp_lens(torch.tensor(tokens), Shard(c, rank)))
    return rows * model.bytes_per_token({1: "fp8", 2: "bf16", 4: "fp32"}[item])


def _geometry(rng: Random, size: int) -> Inputs:
    c = path.ranks(rng, size)
    return {
        "tokens": rng.randint(1, 10) if size < 3 else path.number(rng, min(size, 6), 1),
        "c": c,
        "rank": rng.randrange(c),
        "layers": rng.randint(1, 3) if size < 3 else rng.randint(4, 61),
        "latent": rng.choice([4, 8]) if size < 3 else rng.choice([128, 256, 512]),
        "rope": rng.choice([1, 2]) if size < 3 else rng.choice([32, 64]),
        "item": rng.choice([1, 2, 4]),
    }


def seconds(tokens: int, c: int, token_bytes: int, gb_per_s: float) -> float:
    """The slowest rank decides, and it holds the tokens of a broken turn too."""
    return -(-tokens // c) * token_bytes / (gb_per_s * 1e9)


def _seconds(tokens: int, c: int, token_bytes: int, gb_per_s: float) -> float:
    lens = [int(get_dcp_lens(torch.tensor(tokens), Shard(c, rank))) for rank in range(c)]
    return max(lens) * token_bytes / gb_per_s / 10**9


def _copy(rng: Random, size: int) -> Inputs:
    return {
        "tokens": rng.randint(1, 10) if size < 3 else rng.randint(1, 10**5),
        "c": path.ranks(rng, size),
        "token_bytes": 10**9 if size < 3 else rng.randint(1, 50) * 10**4,
        "gb_per_s": float(rng.choice([1, 2, 10, 25, 55])),
    }


def tokens_that_fit(budget: int, c: int, P: int, row: int, index: int) -> int:
    """A page costs P latent rows, and P * c entries of the index, since every rank has them all."""
    pages = budget // (P * row + P * c * index)
    return (pages - 1) * P * c


def _tokens_that_fit(budget: int, c: int, P: int, row: int, index: int) -> int:
    low, high = 1, budget
    while low < high:
        middle = (low + high + 1) // 2
        layout = DcpLayout(c, P, middle)
        cost = layout.rows_per_rank * row + layout.slot_end * index
        low, high = (middle, high) if cost <= budget else (low, middle - 1)
    return DcpLayout(c, P, low).capacity_tokens


def _budget(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    row, index = rng.randint(2, 9) * 4**size, rng.randint(1, 3) * 3**size
    page = P * row + P * c * index
    pages = rng.randint(2, 4 + 10 * size)
    budget = pages * page + rng.randrange(page)
    return {"budget": budget, "c": c, "P": P, "row": row, "index": index}


def break_even(token_bytes: int, c: int, mb_per_s: int, fixed_us: int, prefill_per_s: int) -> int:
    """Each token must win back its share of two fixed costs."""
    copy_us = 2 * token_bytes / c / mb_per_s  # 1 MB/s is one byte a microsecond
    gain_us = 1e6 / prefill_per_s - copy_us
    return math.floor(2 * fixed_us / gain_us) + 1 if gain_us > 0 else -1


def _break_even(token_bytes: int, c: int, mb_per_s: int, fixed_us: int, prefill_per_s: int) -> int:
    copied = Fraction(2 * token_bytes, c * mb_per_s)
    computed = Fraction(10**6, prefill_per_s)
    if copied >= computed:
        return -1
    tokens = Fraction(2 * fixed_us) / (computed - copied)
    return int(tokens) + 1


def _tie(rng: Random, size: int) -> Inputs:
    """Copying wins back a whole number of microseconds a token, or none: exact in floats too."""
    per_token, gain = rng.choice([25, 50, 100, 200, 500]), rng.choice([-1, 0, 0, 1, 2, 4])
    c = rng.choice([2, 4] if size < 3 else [2, 4, 6, 8, 16])
    mb_per_s = rng.randint(1, 4) if size < 3 else rng.randint(2, 60) * 1000
    return {
        "token_bytes": (per_token - gain) * c // 2 * mb_per_s,
        "c": c,
        "mb_per_s": mb_per_s,
        "fixed_us": 2 * (rng.randint(50, 450) if size < 3 else rng.randint(5, 2500)),
        "prefill_per_s": 10**6 // per_token,
    }


def _node(rng: Random, size: int) -> Inputs:
    if rng.random() < 0.2:
        return _tie(rng, size)
    while True:
        given = {
            "token_bytes": rng.choice([8, 70]) * (1 if size < 3 else 1000) + rng.randrange(9),
            "c": path.ranks(rng, size),
            "mb_per_s": rng.randint(1, 4) if size < 3 else rng.randint(2, 60) * 1000,
            "fixed_us": rng.randint(100, 900) if size < 3 else rng.randint(10, 5000),
            "prefill_per_s": rng.choice([2, 5, 10, 20, 40, 80, 200]) * 1000,
        }
        gain = (
            1e6 / given["prefill_per_s"] - 2 * given["token_bytes"] / given["c"] / given["mb_per_s"]
        )
        even = 2 * given["fixed_us"] / gain if gain else 0.5
        # Not so close to a whole number that rounding decides.
        if abs(gain) > 1e-6 and abs(even - round(even)) > 1e-6 and even < 10**7:
            return dict(given)


def expose_host(capacity: int, c: int) -> tuple[list[int], list[int]]:
    """The first rank gets the whole host, the second nothing; what the first took stays taken."""
    return [capacity] * c, [1] + [0] * (c - 1)


def _host(rng: Random, size: int) -> Inputs:
    capacity = rng.randint(4, 20) if size < 3 else path.number(rng, size, low=10)
    return {"capacity": capacity, "c": path.ranks(rng, size)}


def expose_arena(capacity: int) -> list[int]:
    """A block that waits is too small for the next backup, and is not dropped either."""
    return [1, -1, capacity]


def _capacity(rng: Random, size: int) -> Inputs:
    return {"capacity": rng.randint(4, 20) if size < 3 else path.number(rng, size, low=10)}


ALL = (
    Exercise(
        "bytes-of-a-backup",
        NOTEBOOK,
        2,
        "How many bytes does a rank save?",
        """An MLA model keeps one row of latent + rope elements a token and layer, `item` bytes an
        element. A request with KV for positions 0 .. tokens-1 is backed up on c ranks. How many
        bytes does rank `rank` copy?""",
        answer=backup_bytes,
        spec=_backup_bytes,
        example={
            "tokens": 1001,
            "c": 8,
            "rank": 0,
            "layers": 7,
            "latent": 512,
            "rope": 64,
            "item": 2,
        },
        make=_geometry,
        hint="key and value are one row; 1001 tokens on 8 ranks are 126 on rank 0, 125 on others",
        source="the public configs of the models (data/models/geometry.csv)",
    ),
    Exercise(
        "bandwidth-floor",
        NOTEBOOK,
        2,
        "The floor of a backup's time",
        """A request of `tokens` positions is backed up. Each of the c ranks copies what it owns
        over a link of its own, gb_per_s GB a second (1 GB = 10**9 bytes); one token has
        token_bytes bytes in all layers. Nothing can be faster than the link. After how many
        seconds, at least, has the last rank finished?""",
        answer=seconds,
        spec=_seconds,
        example={"tokens": 100_001, "c": 8, "token_bytes": 70_272, "gb_per_s": 25.0},
        make=_copy,
        hint="which rank holds most, and how many tokens is that?",
    ),
    Exercise(
        "replicated-index",
        NOTEBOOK,
        3,
        "What an index on every rank costs",
        """A rank has `budget` bytes for its cache. Of each page it keeps P latent rows of `row`
        bytes, its own share; and it keeps the index entries (`index` bytes each) of *all* tokens
        of the widened page, P * c of them. Whole pages only, and one of them is the padding page,
        which has index entries too. How many tokens do the c ranks hold together?""",
        answer=tokens_that_fit,
        spec=_tokens_that_fit,
        example={"budget": 1000, "c": 2, "P": 4, "row": 10, "index": 3},
        make=_budget,
        hint="first the bytes of one page on one rank; then whole pages; then take one off",
        source="SGLang issue 31821 (2,292,288 tokens a rank become 4,252,416 at DCP 2)",
        core=False,
    ),
    Exercise(
        "break-even",
        NOTEBOOK,
        3,
        "Copy it, or compute it again?",
        """A retracted request of n tokens can be copied to the host and back: two copies, each of
        fixed_us microseconds and then, on every rank at once, n * token_bytes / c bytes at
        mb_per_s (1 MB = 10**6 bytes). Or it can be prefilled again, prefill_per_s tokens a second.
        Return the smallest whole n >= 1 for which copying is strictly faster, or -1 if there is
        none.""",
        answer=break_even,
        spec=_break_even,
        example={
            "token_bytes": 8064,
            "c": 8,
            "mb_per_s": 25_000,
            "fixed_us": 500,
            "prefill_per_s": 20_000,
        },
        make=_node,
        hint="what does one more token cost each way? The two fixed costs must be won back",
        core=False,
    ),
    Exercise(
        "a-full-host",
        NOTEBOOK,
        4,
        "What a declined backup leaves behind",
        """Each rank of a node takes a block of the host memory below. When the host is full the
        request is aborted. Return (first, second): the sizes of two requests, one a rank, such
        that the first is declined, and the second is declined although it fits the host (its sizes
        add up to `capacity` at most) and no backup is there.""",
        answer=expose_host,
        judge=leak_exposes,
        example={"capacity": 10, "c": 2},
        make=_host,
        hint="what do the ranks before the one that was declined hold, and who gives it back?",
        code=(RankBackups,),
        core=False,
    ),
    Exercise(
        "arena-over-its-bound",
        NOTEBOOK,
        5,
        "Find the bug in this arena",
        """The host arena below keeps blocks that were given back and lends them again. Its law:
        blocks that are lent and blocks that wait together never exceed `capacity`. Return a list
        of whole numbers that breaks it: n > 0 takes a block for n bytes (at most `capacity`), -k
        gives back the block of the k-th take.""",
        answer=expose_arena,
        judge=arena_exposes,
        example={"capacity": 10},
        make=_capacity,
        hint="look at the line that compares with the capacity: which blocks does it count?",
        code=(ReusingArena,),
    ),
)
