"""Picking the next token: greedy, seeded, or forced. A pick depends on the request and the position
alone, never on the batch, so a request that was retracted draws what it would have drawn.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvlab.errors import StudyError
from kvlab.index.layout import require_index


class Sampler(Protocol):
    """How the token at a position is chosen."""

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        """The token of ``rid`` at ``position``; ``logprobs`` float32 ``(vocabulary,)``, nats."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """The likeliest token; of equals the lowest id."""

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        """Its id."""
        return int(torch.argmax(logprobs))


@dataclass(frozen=True, slots=True)
class Seeded:
    """A draw from the distribution at ``temperature``, from a generator of its own for each
    (seed, request, position). Errors: StudyError for a temperature that is not above 0."""

    seed: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        require_index("seed", self.seed)
        if not 0 < self.temperature < float("inf"):
            raise StudyError(
                f"temperature must be finite and above 0: got {self.temperature!r}; for the "
                f"likeliest token use Greedy()"
            )

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        """The drawn id. Errors: StudyError for logprobs that hold a NaN, or no possible token."""
        text = f"{self.seed}/{rid}/{position}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
        generator = torch.Generator().manual_seed(number)
        chances = torch.softmax(logprobs.cpu() / self.temperature, dim=-1)
        if not bool(torch.isfinite(chances).all()):
            raise StudyError(
                f"a draw needs chances that sum to 1: of request {rid} at position {position} "
                f"{int(torch.isnan(logprobs).sum())} of {len(logprobs)} logprobs are NaN at "
                f"temperature {self.temperature}"
            )
        return int(torch.multinomial(chances, 1, generator=generator))


@dataclass(frozen=True, slots=True)
class Forced:
    """The tokens of a reference: ``streams[rid]`` holds prompt and output. What the model would
    have said is in its logprobs. Errors: StudyError past the end of a stream."""

    streams: Mapping[int, Sequence[int]]

    def pick(self, rid: int, position: int, logprobs: Tensor) -> int:
        """The reference's token."""
        stream = self.streams.get(rid, ())
        if position >= len(stream):
            raise StudyError(
                f"a forced stream must reach every position: request {rid} has {len(stream)} "
                f"tokens, position {position} was asked; record the reference longer"
            )
        return require_index(f"token {position} of the stream of request {rid}", stream[position])
