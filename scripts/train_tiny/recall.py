"""What the tiny model can do: bits a byte of held-out text, recall, and where the recall lies.

Bits and ``recall_score`` are of plain logits and draw the same sequences every time, so lines of a
log can be compared. A model that gives each byte the same chance needs 8 bits a byte, and names a
value byte in one of 16 cases if it has learned no more than how values look.

Where recall lies is asked through the sharded engine. Requests of one length are prefilled up to
their first ``get``; then neighbors exchange what the pools hold for them, by backup and restore,
and each goes on with its own bytes, which ask for its own values:

    request 0   set qk=5f zt=0c ... get | qk=5f      the state and rows of request 1 say: ab=77 ...
    request 1   set ab=77 cd=10 ... get | cd=10      ... and those of request 0: qk=5f zt=0c

Attention sums over a *set* of rows, so shuffling the rows within a request changes nothing but the
order of a sum. That is why rows are exchanged between requests.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kvlab.engine.model import ShardedModel
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.memory import PagedTokenToKVPoolAllocator
from scripts.train_tiny.corpus import Bytes, question, recall, text

# Requests of one batch; an even number, so that no pair is split.
GROUP = 16
DCP_SIZE, PAGE_SIZE = 2, 16
# int64 (B, T) to float (B, T, 256).
Logits = Callable[[Tensor], Tensor]


def plain_logits(model: Any) -> Logits:
    """The model's own logits, without a cache."""
    return lambda tokens: model(input_ids=tokens, use_cache=False).logits


@torch.no_grad()
def window_bits(logits: Logits, source: Bytes, *, sequences: int, length: int) -> list[float]:
    """Bits a byte of each of ``sequences`` windows of ``source``, each of ``length`` bytes; the
    first byte of a window is given, the others are predicted. More windows begin with the same."""
    rng = np.random.default_rng(1)
    lines = torch.from_numpy(np.stack([text(source, length, rng) for _ in range(sequences)])).long()
    nats: list[float] = []
    for part in torch.split(lines, 8):
        made = logits(part)[:, :-1].float().transpose(1, 2)
        lost = functional.cross_entropy(made, part[:, 1:], reduction="none")
        nats += lost.mean(1).tolist()
    return [loss / math.log(2) for loss in nats]


@torch.no_grad()
def recall_score(
    logits: Logits, source: Bytes, *, sequences: int, length: int, pairs: int
) -> float:
    """Share, 0 to 1, of the value bytes after a ``get`` that are ranked first. Values of a second
    ``get`` of a sequence count too, and can be known from the first."""
    rng = np.random.default_rng(2)
    right = asked = 0
    for _ in range(sequences):
        made = recall(source, length, rng, pairs)
        line = torch.from_numpy(made.data.copy()).long()
        best = logits(line[None])[0].argmax(-1)
        places = torch.from_numpy(made.asked)
        right += int((best[places - 1] == line[places]).sum())
        asked += len(places)
    return right / asked


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """``tokens`` int64 ``(N, n)``; the first ``prompt`` of them end with ``get``; ``asked`` int64
    ``(N, K)``: positions of the bytes of values, all behind the prompt."""

    tokens: Tensor
    prompt: int
    asked: Tensor


def draw_questions(source: Bytes, count: int, *, pairs: int = 12, gap: int = 160) -> Questions:
    """The first ``count``, an even number, of a fixed sequence of questions."""
    rng = np.random.default_rng(3)
    made = [question(source, gap, rng, pairs) for _ in range(count)]
    return Questions(
        torch.from_numpy(np.stack([one.data for one in made])).long(),
        made[0].first_get + len("get"),
        torch.from_numpy(np.stack([one.asked for one in made])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Requests whose prompts are in the pools: ``held`` are the slots of their prompts, ``states``
    their state slots."""

    sharded: ShardedModel
    held: list[WidenedSlots]
    states: list[int]


Change = Callable[[Prefilled], None]


def keep(here: Prefilled) -> None:
    """Change nothing."""


def exchange_rows(here: Prefilled) -> None:
    """Request 0 gets the rows of request 1 and the other way round, and so on by pairs."""
    pools = here.sharded.pools
    taken = [pools.back_up(run, None) for run in here.held]
    for i, run in enumerate(here.held):
        pools.restore(taken[i ^ 1], run, None)


def exchange_state(here: Prefilled) -> None:
    """The same with the recurrent state: matrices and convolution windows of all KDA layers."""
    states = here.sharded.pools.states
    assert states is not None  # the tiny model has linear layers
    taken = [states.get_cpu_copy(slot) for slot in here.states]
    for i, slot in enumerate(here.states):
        states.load_cpu_copy(taken[i ^ 1], slot)


def exchange_both(here: Prefilled) -> None:
    """Rows and state: all that a request is, but its coming bytes."""
    exchange_rows(here)
    exchange_state(here)


def shuffle_rows(here: Prefilled) -> None:
    """Rows of each request in another order, over all ranks, another in each layer."""
    pools = here.sharded.pools
    generator = torch.Generator().manual_seed(4)
    for run in here.held:
        places = [(pool, pool.resolve(run)) for pool in pools.ranks]
        for layer in range(pools.ranks[0].layers):
            rows = torch.cat([pool.buffer[layer, own.ids] for pool, own in places])
            rows = rows[torch.randperm(len(rows), generator=generator)]
            shares = torch.split(rows, [len(own) for _, own in places])
            for (pool, own), share in zip(places, shares, strict=True):
                pool.buffer[layer, own.ids] = share


#: The conditions, in the order of the tables.
CHANGES: dict[str, Change] = {
    "in_place": keep,
    "rows_exchanged": exchange_rows,
    "state_exchanged": exchange_state,
    "rows_and_state_exchanged": exchange_both,
    "rows_shuffled_within_request": shuffle_rows,
}


def logits_after(model: Any, asked: Questions, change: Change) -> Tensor:
    """Logits ``(N, n - prompt, 256)`` of the bytes behind the prompt, after ``change``.

    The model's attention is kvlab's from here on, see ``ShardedModel``.
    """
    groups = torch.split(asked.tokens, GROUP)
    return torch.cat([_group(model, tokens, asked.prompt, change) for tokens in groups])


def right_bytes(logits: Tensor, asked: Questions) -> list[int]:
    """For each question, how many of its value bytes were ranked first."""
    said = torch.gather(logits.argmax(-1), 1, asked.asked - asked.prompt - 1)
    right: list[int] = (said == torch.gather(asked.tokens, 1, asked.asked)).sum(1).tolist()
    return right


def _group(model: Any, tokens: Tensor, prompt: int, change: Change) -> Tensor:
    requests, length = tokens.shape
    pages = requests * -(-length // (DCP_SIZE * PAGE_SIZE))
    layout = DcpLayout(DCP_SIZE, PAGE_SIZE, pages)
    sharded = ShardedModel(model, layout, requests=requests)
    allocator = PagedTokenToKVPoolAllocator(layout)
    slots, states = [], []
    for _ in range(requests):
        ids, state = allocator.alloc_extend(0, length), sharded.pools.alloc_state()
        assert ids is not None and state is not None  # the pools were made for them
        slots.append(WidenedSlots(ids))
        states.append(state)
    here = Prefilled(sharded, [WidenedSlots(run.ids[:prompt]) for run in slots], states)
    sharded.forward(tokens[:, :prompt], here.held, states)
    change(here)
    return sharded.forward(tokens[:, prompt:], slots, states, keep=0)
