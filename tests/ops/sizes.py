"""The sizes on which every twin is held to its reference, by the name of the op.

Small, so that Triton's interpreter goes through them in seconds, and odd: none, one, one past a
block, words of every width, ranges that begin in the middle.
"""

from itertools import cycle

from kvlab.ops.specs import Sizes


def _table(names: str, *rows: tuple[int | str, ...]) -> tuple[Sizes, ...]:
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


# Every c of 1 .. 8 with interleaves, first or last rank in turn.
_TURNS = [
    {"dcp_size": c, "dcp_rank": (c - 1) * (which % 2), "interleave": interleave}
    for c in range(1, 9)
    for which, interleave in enumerate((1, 2, 5))
]
# Starts in every phase, lengths on both sides of a block.
_RUNS = [
    {**turn, "start": start, "n": n}
    for at, turn in enumerate(_TURNS)
    for start, n in ((0, 1025), (at + 1, 37 + at), (7 * at + 2**40, 1 + at % 3))
]
_COPIES = _table(
    "layers rows elements dtype page_size block_rows shuffled skip",
    (1, 0, 8, "bfloat16", 1, 4, 0, 0),
    (1, 1, 1, "uint8", 1, 1, 0, 0),
    (3, 64, 576, "bfloat16", 16, 64, 0, 0),
    (3, 64, 576, "bfloat16", 16, 32, 1, 0),
    (2, 71, 576, "bfloat16", 64, 64, 0, 5),
    (2, 33, 656, "uint8", 8, 16, 0, 30),
    (3, 29, 7, "bfloat16", 3, 6, 0, 11),
    (2, 29, 7, "uint8", 3, 9, 1, 1),
    (4, 13, 3, "float32", 1, 5, 1, 20),
    (2, 9, 1200, "float32", 4, 8, 0, 2),
    (5, 17, 2, "bfloat16", 2, 100, 0, 8),
)
_WRITES = _table(
    "n d1 d2 dtype bad",
    (37, 512, 64, "bfloat16", 2),
    (9, 512, 64, "bfloat16", 0),
    (70, 7, 2, "uint8", 3),
    (0, 8, 4, "bfloat16", 0),
    (1, 5, 3, "float32", 0),
    (11, 656, 0, "uint8", 0),
    (11, 3, 1, "bfloat16", 1),
)
_MERGES = _table(
    "dcp_size queries heads d dtype",
    *((c, 3, 5, 64, ("float32", "bfloat16", "float16")[c % 3]) for c in range(1, 9)),
    (4, 0, 16, 64, "bfloat16"),
    (8, 1, 1, 1, "float32"),
    (3, 2, 7, 129, "float32"),
    (8, 2, 16, 512, "bfloat16"),
    (2, 1, 3, 700, "float32"),
    (2, 2, 3, 0, "float32"),
)

SIZES: dict[str, tuple[Sizes, ...]] = {
    "localize_run": (*_RUNS, {**_TURNS[4], "start": 3, "n": 0}),
    "localize_fixed_shape": tuple(
        {**turn, "n": n, "hole": -(at % 2)} for at, turn in enumerate(_TURNS) for n in (at * 50, 1)
    ),
    "remap_topk": tuple(
        {**turn, "lists": lists, "k": k + at}
        for at, turn in enumerate(_TURNS)
        for lists, k in ((3, 37), (0, 5), (2, 4097))
    ),
    "gather_rows": _COPIES,
    "scatter_rows": _COPIES,
    "set_mla_kv_buffer": tuple(
        {**turn, **write} for turn, write in zip(_TURNS, cycle(_WRITES), strict=False)
    ),
    "merge_stacked": _MERGES,
}
