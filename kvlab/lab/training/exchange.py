"""Where recall comes from: the same questions with rows, state, or both of another request.

Requests of one length are prefilled up to the first ``get``, through the sharded engine. Then
neighbours exchange what the pools hold for them, by backup and restore, and each request goes on
with its own bytes, which ask for its own values:

    request 0   set qk=5f zt=0c ... get | qk=5f      the state and rows of request 1 say: ab=77 ...
    request 1   set ab=77 cd=10 ... get | cd=10      ... and those of request 0: qk=5f zt=0c

An attention of a decode step sums over a *set* of rows, and in which row a token lies says nothing:
shuffling the rows within a request changes nothing but the order of a sum. (With rotated keys too,
since keys are rotated before they are stored; Kimi Linear's are not.) That is why rows are
exchanged between requests, and why a wrong order alone would go unseen.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvlab.engine.model import ShardedModel
from kvlab.engine.model.tiny import Model
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.lab.training.corpus import Bytes, question
from kvlab.memory import PagedTokenToKVPoolAllocator

# Requests of one batch; an even number, so that no pair is split.
GROUP = 16
DCP_SIZE, PAGE_SIZE = 2, 16


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """``tokens`` int64 ``(N, n)``; the first ``prompt`` of them end with ``get``; ``asked`` int64
    ``(N, K)``: positions of the bytes of values, all behind the prompt."""

    tokens: Tensor
    prompt: int
    asked: Tensor


def draw_questions(source: Bytes, count: int, *, pairs: int = 12, gap: int = 160) -> Questions:
    """The first ``count`` of a fixed sequence of questions. Errors: StudyError unless ``count`` is
    even and above 0: requests exchange in pairs."""
    if count < 2 or count % 2:
        raise StudyError(
            f"requests exchange rows in pairs: got {count} questions; ask an even number, from 2"
        )
    rng = np.random.default_rng(3)
    made = [question(source, gap, rng, pairs) for _ in range(count)]
    return Questions(
        torch.from_numpy(np.stack([one.data for one in made])).long(),
        made[0].first_get + len("get"),
        torch.from_numpy(np.stack([one.asked for one in made])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled:
    """Requests whose prompts are in the pools: ``slots`` of all their positions, the later ones
    unwritten; ``held`` of the prompt alone; ``states``: their state slots."""

    sharded: ShardedModel
    slots: list[WidenedSlots]
    held: list[WidenedSlots]
    states: list[int | None]


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
    if states is None:
        raise StudyError(
            "only a model with recurrent state can exchange it: this one keeps rows alone; use "
            "exchange_rows"
        )
    slots = [slot for slot in here.states if slot is not None]
    taken = [states.get_cpu_copy(slot) for slot in slots]
    for i, slot in enumerate(slots):
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


def logits_after(model: Model, asked: Questions, change: Change) -> Tensor:
    """Logits ``(N, n - prompt, 256)`` of the bytes behind the prompt, after ``change``.

    The model's attention is kvlab's from here on, see ``ShardedModel``. Errors: StudyError unless
    the questions are even in number and longer than their prompt.
    """
    count, length = asked.tokens.shape
    if count < 2 or count % 2 or not 0 < asked.prompt < length:
        raise StudyError(
            f"requests exchange rows in pairs, behind a prompt and before the rest: got {count} "
            f"questions of {length} tokens with a prompt of {asked.prompt}; ask an even number"
        )
    parts = [_group(model, asked.tokens[i : i + GROUP], asked.prompt, change)
             for i in range(0, len(asked.tokens), GROUP)]  # fmt: skip
    return torch.cat(parts)


def right_bytes(logits: Tensor, asked: Questions) -> list[int]:
    """For each question, how many of its value bytes were ranked first."""
    best = logits.argmax(-1)
    said = torch.gather(best, 1, asked.asked - asked.prompt - 1)
    wanted = torch.gather(asked.tokens, 1, asked.asked)
    right: list[int] = (said == wanted).sum(1).tolist()
    return right


def _group(model: Model, tokens: Tensor, prompt: int, change: Change) -> Tensor:
    requests, length = tokens.shape
    pages = requests * -(-length // (DCP_SIZE * PAGE_SIZE))
    layout = DcpLayout(DCP_SIZE, PAGE_SIZE, pages)
    sharded = ShardedModel(model, layout, requests=requests)
    allocator = PagedTokenToKVPoolAllocator(layout)
    slots = []
    for _ in range(requests):
        ids = allocator.alloc_extend(0, length)
        assert ids is not None  # the pool was made for them
        slots.append(WidenedSlots(ids))
    held = [WidenedSlots(run.ids[:prompt]) for run in slots]
    here = Prefilled(sharded, slots, held, [sharded.pools.alloc_state() for _ in slots])
    sharded.forward(tokens[:, :prompt], held, here.states)
    change(here)
    return sharded.forward(tokens[:, prompt:], slots, here.states, keep=0)
