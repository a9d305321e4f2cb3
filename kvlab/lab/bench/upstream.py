"""The baselines, as upstream does it: the bare stride, the mask, and the copy loops by chunks.

The copy loops are those after the fix: ids become rows once, then every layer is copied chunk by
chunk with advanced indexing, each chunk into memory of its own.

Source: SGLang ``layers/dcp/layout.py`` (PR 39487), the mask of PR 38790, and
``MLATokenToKVPool.get_cpu_copy`` and ``load_cpu_copy``; the eager owner write is its plan
``plan_dcp_owner_write`` carried out by torch.
"""

import torch
from torch import Tensor

#: Ids of one chunk (upstream ``cpu_offloading_chunk_size``).
CHUNK = 8192

Chunks = list[list[Tensor]]


def stride(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Rows of ``dcp_rank``, from a run that is taken to start at position 0. Nothing is checked."""
    return ids[dcp_rank::dcp_size] // dcp_size


def mask(ids: Tensor, dcp_size: int, dcp_rank: int) -> Tensor:
    """Rows of ``dcp_rank``, whatever the order of the ids."""
    return ids[ids % dcp_size == dcp_rank] // dcp_size


def back_up(buffer: Tensor, ids: Tensor, dcp_size: int, dcp_rank: int) -> Chunks:
    """Rows of every layer of ``buffer`` ``(layers, rows, elements)``, by chunks."""
    rows = stride(ids, dcp_size, dcp_rank)
    return [
        [
            layer[rows[at : at + CHUNK]].to("cpu", non_blocking=True)
            for at in range(0, len(rows), CHUNK)
        ]
        for layer in buffer
    ]


def restore(buffer: Tensor, copies: Chunks, ids: Tensor, dcp_size: int, dcp_rank: int) -> None:
    """Write the chunks to the rows of other ids of the same positions."""
    rows = stride(ids, dcp_size, dcp_rank)
    for layer, chunks in zip(buffer, copies, strict=True):
        for at, chunk in zip(range(0, len(rows), CHUNK), chunks, strict=True):
            layer[rows[at : at + CHUNK]] = chunk.to(buffer.device, non_blocking=True)


def write_owned(
    layer: Tensor, ids: Tensor, k_nope: Tensor, k_rope: Tensor, dcp_size: int, dcp_rank: int
) -> None:
    """Store the rows of the owned ids in one layer ``(rows, elements)``: mask, select, assign."""
    mine = (ids % dcp_size == dcp_rank).nonzero().flatten()
    layer[ids[mine] // dcp_size] = torch.cat((k_nope[mine], k_rope[mine]), dim=1)
