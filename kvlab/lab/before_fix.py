"""The defect, kept on purpose: retraction as it was before the fix, widened ids used as rows.

Nothing else in kvlab may call this. It mirrors the upstream loop (per layer, per chunk, advanced
indexing) and skips the localization: that is all that was wrong. ``copy_out`` raises where an id
is out of range (``IndexError`` on CPU, a device-side assert on CUDA) and is silent where it is not.

Source: SGLang issue 38645; ``MLATokenToKVPool.get_cpu_copy`` before PR 39487.
"""

from torch import Tensor

CHUNK = 8192


def copy_out(buffer: Tensor, ids: Tensor, chunk: int = CHUNK) -> list[list[Tensor]]:
    """Rows ``ids`` of every layer, by chunks: right only where an id is a row (DCP 1).

    ``buffer`` ``(layers, rows, elements)``; ``ids`` int64 ``(n,)`` as ``req_to_token`` holds them.
    """
    ids = ids.to(buffer.device)
    return [
        [layer[ids[at : at + chunk]].to("cpu") for at in range(0, len(ids), chunk)]
        for layer in buffer
    ]


def copy_in(buffer: Tensor, copies: list[list[Tensor]], ids: Tensor, chunk: int = CHUNK) -> None:
    """Write the chunks back to rows ``ids``: whose rows those are, nobody asked."""
    ids = ids.to(buffer.device)
    for layer, chunks in zip(buffer, copies, strict=True):
        for at, part in zip(range(0, len(ids), chunk), chunks, strict=True):
            layer[ids[at : at + chunk]] = part.to(buffer.device)
