"""The specs of all ops. A new op gets a line here, and with it its tests and its benchmark.

Sizes are small, so that Triton's interpreter goes through them in seconds, and odd: none, one, one
past a block, words of every width, ranges that begin in the middle.
"""

from functools import partial
from itertools import cycle

from kvlab.ops import inputs as make
from kvlab.ops.localize import localize_fixed_shape, localize_run, remap_topk
from kvlab.ops.merge import merge_stacked
from kvlab.ops.rows import gather_rows, scatter_rows
from kvlab.ops.spec import Inputs, OpSpec, Sizes
from kvlab.ops.write import set_mla_kv_buffer

_RANKS = {
    "dcp_size": "ranks that share one request's KV (c)",
    "dcp_rank": "the rank that asks, 0 .. c-1",
}
_TURN = {**_RANKS, "interleave": "consecutive slots that one rank stores (I)"}
_RUN = {"n": "ids, one a position", "start": "position of the first id", **_TURN}


def _turns() -> list[dict[str, int]]:
    """Every c of 1 .. 8 with interleaves, first or last rank in turn."""
    return [
        {"dcp_size": c, "dcp_rank": (c - 1) * (which % 2), "interleave": interleave}
        for c in range(1, 9)
        for which, interleave in enumerate((1, 2, 5))
    ]


def _runs() -> tuple[Sizes, ...]:
    """Every turn with starts in every phase, lengths on both sides of a block."""
    some = (
        {**turn, "start": start, "n": n}
        for at, turn in enumerate(_turns())
        for start, n in ((0, 1025), (at + 1, 37 + at), (7 * at + 2**40, 1 + at % 3))
    )
    return (*some, {**_turns()[4], "start": 3, "n": 0})


def _bad(sizes: Sizes, bad: int) -> Sizes:
    return {**sizes, "bad": bad if int(sizes["n"]) else 0}


def _table(names: str, *rows: tuple[int | str, ...]) -> tuple[Sizes, ...]:
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


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

_WRITES: tuple[Sizes, ...] = tuple(
    {**turn, "n": n, "d1": d1, "d2": d2, "dtype": dtype, "bad": bad}
    for turns, widths in (
        (
            _turns(),
            ((37, 512, 64, "bfloat16", 2), (9, 512, 64, "bfloat16", 0), (70, 7, 2, "uint8", 3)),
        ),
        (
            [_turns()[4]] * 4,
            (
                (0, 8, 4, "bfloat16", 0),
                (1, 5, 3, "float32", 0),
                (11, 656, 0, "uint8", 0),
                (11, 3, 1, "bfloat16", 1),
            ),
        ),
    )
    for turn, (n, d1, d2, dtype, bad) in zip(turns, cycle(widths), strict=False)
)

_MERGES = _table(
        "dcp_size queries heads d dtype",
        *((c, 3, 5, 64, ("float32", "bfloat16", "float16")[c % 3]) for c in range(1, 9)),
        (4, 0, 16, 64, "bfloat16"), (8, 1, 1, 1, "float32"), (3, 2, 7, 129, "float32"),
        (8, 2, 16, 512, "bfloat16"), (2, 1, 3, 700, "float32"), (2, 2, 3, 0, "float32"),
)  # fmt: skip


def _rename(inputs: Inputs) -> int:
    (ids,) = (inputs[k] for k in ("ids", "topk") if k in inputs)
    return 16 * int(ids.numel())


_ROW_AXES = {
    "layers": "layers of the buffer",
    "rows": "rows of the request on this rank",
    "elements": "elements of a row",
    "dtype": "their type",
    "page_size": "rows of a page",
    "block_rows": "rows that are summed together",
    "shuffled": "1: rows in any order, 0: whole pages in order",
    "skip": "flat rows left out at either end",
}

SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        "localize_run", localize_run, _RUN, _runs(), make.run_inputs, (), 0.0, make.run_bytes
    ),
    OpSpec(
        "localize_run_checked",
        localize_run,
        {**_RUN, "bad": "ids that are wrong"},
        tuple(_bad(sizes, at % 4) for at, sizes in enumerate(_runs())),
        make.checked_run_inputs,
        ("flag",),
        0.0,
        make.run_bytes,
    ),
    OpSpec(
        "localize_fixed_shape",
        localize_fixed_shape,
        {"n": "ids, in any order", **_TURN, "hole": "what stands for an id of another rank"},
        tuple(
            {**turn, "n": n, "hole": -(at % 2)}
            for at, turn in enumerate(_turns())
            for n in (at * 50, 1)
        ),
        make.fixed_inputs,
        (),
        0.0,
        _rename,
    ),
    OpSpec(
        "remap_topk",
        remap_topk,
        {"lists": "lists, one a query", "k": "ids of a list", **_RANKS},
        tuple(
            {"dcp_size": c, "dcp_rank": c - 1, "lists": lists, "k": k}
            for c in range(1, 9)
            for lists, k in ((3, 37 * c), (1, 1), (2, 0), (0, 5), (2, 4097 + c))
        ),
        make.topk_inputs,
        (),
        0.0,
        _rename,
    ),
    OpSpec(
        "gather_rows", gather_rows, _ROW_AXES, _COPIES, partial(make.rows_inputs, flat="out"),
        ("out", "sums"), 0.0, make.rows_bytes,
    ),
    OpSpec(
        "scatter_rows", scatter_rows, _ROW_AXES, _COPIES, partial(make.rows_inputs, flat="source"),
        ("buffer", "sums"), 0.0, make.rows_bytes,
    ),
    OpSpec(
        "set_mla_kv_buffer",
        set_mla_kv_buffer,
        {
            **_TURN,
            "n": "tokens of the step",
            "d1": "elements without position",
            "d2": "elements with position",
            "dtype": "type of the buffer",
            "bad": "ids that are wrong",
        },
        _WRITES,
        make.write_inputs,
        ("layer", "flag"),
        0.0,
        make.write_bytes,
    ),
    OpSpec(
        "merge_stacked",
        merge_stacked,
        {
            "dcp_size": "ranks (c)",
            "queries": "query tokens",
            "heads": "heads",
            "d": "elements of an output",
            "dtype": "type of the outputs; lse is float32",
        },
        _MERGES,
        make.merge_inputs,
        (),
        1e-5,
        make.merge_bytes,
    ),
)  # fmt: skip
