"""Decode steps: the sharded engine at c = 1, 2, 4, 8 in one process, against the library's own.

The same model with the same weights, the same batch of requests of one length, the same tokens, one
token a request and step; both contexts grow by it. The library has its own cache and attention, and
expands the keys and values of every cached row in every step; kvlab does so in the row "keys
expanded" and otherwise maps the queries into the latent space. So a long context is where the form
of the attention shows, and a short one, or a single request, is where the cost of the plan and of c
ranks does. The weights are random, which changes no time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvlab.engine.model import Form, ShardedModel
from kvlab.engine.model.tiny import new_tiny_model
from kvlab.errors import StudyError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_int
from kvlab.lab.bench.clock import Contender, take_turns
from kvlab.lab.bench.place import Place
from kvlab.lab.bench.rows import Aim, LeftOut, Row, compare
from kvlab.memory import PagedTokenToKVPoolAllocator

PART = "decode"
LIBRARY = "the library's decode"
PAGE_SIZE = 16
AIMS = {1: Aim(1 / 1.2, "within 1.2x"), 8: Aim(1 / 2.5, "within 2.5x")}
# Logits have a standard deviation of 0.2 to 1; float32 sums in another order differ by 1e-6.
_EQUAL = 1e-4


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """``requests`` in one batch, each of ``tokens`` when the clock starts; a call is ``steps``.

    Errors: LayoutError for a count that is no int or too small.
    """

    requests: int
    tokens: int
    repetitions: int
    warmup: int = 2
    steps: int = 8
    dcp_sizes: tuple[int, ...] = (1, 2, 4, 8)
    aimed: bool = False

    def __post_init__(self) -> None:
        require_int("requests", self.requests, 1, "requests of one batch")
        require_int("tokens", self.tokens, 1, "tokens of a request when the clock starts")
        require_int("repetitions", self.repetitions, 1, "timed rounds")
        require_int("warmup", self.warmup, 0, "rounds that are not timed")
        require_int("steps", self.steps, 1, "decode steps of one call")
        for dcp_size in self.dcp_sizes:
            require_int("dcp_size", dcp_size, 1, "ranks of one process")

    @property
    def last(self) -> int:
        """Tokens of a request at the end: the comparison, the rounds, and one for the start."""
        return self.tokens + 1 + self.steps * (self.repetitions + self.warmup)

    @property
    def name(self) -> str:
        """For instance "16 requests of 128 to 337 tokens"."""
        requests = f"{self.requests} request{'' if self.requests == 1 else 's'}"
        return f"{requests} of {self.tokens} to {self.last} tokens"


FULL = (
    DecodeCase(16, 128, repetitions=24, aimed=True),
    DecodeCase(16, 1024, repetitions=12),
    DecodeCase(1, 128, repetitions=24),
)
QUICK = (DecodeCase(4, 16, repetitions=3, warmup=1, steps=2, dcp_sizes=(1, 8)),)


class Sharded:
    """kvlab's engine on ``dcp_size`` ranks with the case's requests in it, prefilled."""

    def __init__(
        self, model: Any, case: DecodeCase, tokens: Tensor, dcp_size: int, form: Form = "absorbed"
    ) -> None:
        pages = -(-case.last // (dcp_size * PAGE_SIZE))
        layout = DcpLayout(dcp_size, PAGE_SIZE, case.requests * pages)
        self.model = ShardedModel(model, layout, requests=case.requests, form=form)
        allocator = PagedTokenToKVPoolAllocator(layout)
        found = [allocator.alloc_extend(0, case.last) for _ in range(case.requests)]
        self.ids = [ids for ids in found if ids is not None]  # all: the layout was made for them
        self.states = [self.model.pools.alloc_state() for _ in self.ids]
        self.tokens, self.filled = tokens, case.tokens
        self.model.forward(tokens[:, : case.tokens], self._slots(), self.states)

    def step(self) -> Tensor:
        """The next token of each request: logits ``(requests, vocabulary)``."""
        column = self.tokens[:, self.filled].tolist()
        self.filled += 1
        return self.model.decode(column, self._slots(), self.states)

    def _slots(self) -> list[WidenedSlots]:
        return [WidenedSlots(ids[: self.filled]) for ids in self.ids]


class Library:
    """The same model with its own cache and attention."""

    def __init__(self, model: Any, case: DecodeCase, tokens: Tensor) -> None:
        self.model, self.tokens, self.filled = model, tokens, case.tokens
        with torch.no_grad():
            self.cache = model(input_ids=tokens[:, : case.tokens], use_cache=True).cache

    @torch.no_grad()
    def step(self) -> Tensor:
        """The next token of each request: logits ``(requests, vocabulary)``."""
        column = self.tokens[:, self.filled : self.filled + 1]
        self.filled += 1
        logits: Tensor = self.model(input_ids=column, cache=self.cache, use_cache=True).logits
        return logits[:, -1]


def rows_of(case: DecodeCase) -> list[Row]:
    """Time one case, times a step. Errors: StudyError when the logits of two contenders differ."""
    library, ours = new_tiny_model(0), new_tiny_model(0)
    library.train(False)  # the engine sees to its own
    chance = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 256, (case.requests, case.last), generator=chance)
    runs: dict[str, Library | Sharded] = {LIBRARY: Library(library, case, tokens)}
    aims: dict[str, Aim | None] = {}
    for dcp_size in case.dcp_sizes:
        aims[f"decode, c={dcp_size}"] = AIMS.get(dcp_size) if case.aimed else None
        runs[f"decode, c={dcp_size}"] = Sharded(ours, case, tokens, dcp_size)
    aims["decode, c=1, keys expanded"] = None
    runs["decode, c=1, keys expanded"] = Sharded(ours, case, tokens, 1, "expanded")
    require_equal(case, {name: run.step() for name, run in runs.items()})
    timing = take_turns(
        [Contender(name, _steps(run, case.steps), calls=case.steps) for name, run in runs.items()],
        case.repetitions,
        case.warmup,
    )
    rows = [compare(PART, case.name, timing, name, LIBRARY, aim) for name, aim in aims.items()]
    return [_with_rate(row) for row in rows]


def require_equal(case: DecodeCase, logits: dict[str, Tensor]) -> None:
    """Raise StudyError unless all say what the library says."""
    for name, found in logits.items():
        apart = float((found - logits[LIBRARY]).abs().max())
        if not apart <= _EQUAL:
            raise StudyError(
                f"what is timed must be right: the logits of {name!r} are {apart:.3g} from the "
                f"library's ({case.name}), at most {_EQUAL:.0e} is rounding; do not trust this "
                f"benchmark"
            )


def measure(quick: bool, _: Place) -> Iterator[list[Row] | LeftOut]:
    """The rows of each case."""
    for case in QUICK if quick else FULL:
        yield rows_of(case)


def _with_rate(row: Row) -> Row:
    return replace(row, note=f"{1 / row.seconds.median:.0f} steps/s")


def _steps(run: Library | Sharded, steps: int) -> Callable[[int], Callable[[], object]]:
    def several() -> None:
        for _ in range(steps):
            run.step()

    return lambda _: several
