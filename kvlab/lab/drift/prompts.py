"""The requests of the study: recall lines and text of this project, stored with it.

Each line of ``data/drift/prompts.jsonl`` is a prompt of bytes (ASCII): "set qk=5f zt=0c bf=9e" (8
to 16 pairs), some text, and "get zt=0c bf=", where the model must recall what is only in the rows
of the pair. A byte is a token id below 256, whatever it means to a model.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvlab.engine.workload import Request, Workload
from kvlab.engine.workload.traces import once
from kvlab.errors import WorkloadError
from kvlab.memory.published import data_path

#: Seconds of a forward, by which arrivals are placed on steps.
STEP_S = 0.025
#: Most requests at once; the stored ones come about every third forward and reach 17.
RUNNING = 20
#: Most positions of a request, prompt and output: a pool holds 20 of the longest, on each rank.
LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Prompts:
    """``workload``: who comes when; ``tokens``: the prompt of each, by rid; ``answers``:
    the bytes that the first output tokens should recall."""

    workload: Workload
    tokens: tuple[tuple[int, ...], ...]
    answers: tuple[bytes, ...]

    @property
    def positions(self) -> int:
        """Positions of the longest request, prompt and output."""
        return max(r.prompt_tokens + r.output_tokens for r in self.workload.requests)

    def head(self, requests: int, output_tokens: int | None = None) -> "Prompts":
        """The first requests, each cut to at most ``output_tokens``.

        Errors: WorkloadError for more requests than there are, or fewer than 1.
        """
        if not 1 <= requests <= len(self.tokens):
            raise WorkloadError(
                f"the study has {len(self.tokens)} requests: got requests={requests}; take 1 .. "
                f"{len(self.tokens)} of them"
            )
        most = LONGEST if output_tokens is None else output_tokens
        lengths = [min(r.output_tokens, most) for r in self.workload.requests[:requests]]
        return _prompts(self.tokens[:requests], lengths, self.answers[:requests])


@lru_cache
def default_prompts() -> Prompts:
    """The 48 requests that are stored with the project. Errors: as ``read_prompts``."""
    return read_prompts(data_path("drift", "prompts.jsonl"))


def read_prompts(path: Path) -> Prompts:
    """Requests of a JSON-lines file with ``prompt``, ``answer``, ``output_tokens`` a line.

    Errors: WorkloadError, naming the line that breaks a rule, or the file that cannot be read.
    """
    tokens, lengths, answers = [], [], []
    number = 0
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            number += 1
            found = json.loads(line, object_pairs_hook=once)
            prompt, length = found["prompt"].encode("ascii"), found["output_tokens"]
            if not prompt or type(length) is not int or not 2 <= length <= LONGEST - len(prompt):
                raise ValueError(
                    f"{len(prompt)} + {length!r} positions of prompt and output; a prompt is not "
                    f"empty, an output is an int of at least 2, both together at most {LONGEST}"
                )
            tokens.append(tuple(prompt))
            lengths.append(length)
            answers.append(found["answer"].encode("ascii"))
        if not tokens:
            raise ValueError("it has 0 lines")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkloadError(
            f"prompts are JSON lines, each with prompt and answer in ASCII and output_tokens >= 2: "
            f"{path.name!r}, line {number}: {type(error).__name__}: {error}; correct it, or name "
            f"another file"
        ) from None
    return _prompts(tokens, lengths, answers)


def _prompts(
    tokens: Sequence[tuple[int, ...]], lengths: Sequence[int], answers: Sequence[bytes]
) -> Prompts:
    # One in every three forwards, unevenly: whoever is newest is retracted first, so requests
    # that come one by one are all retracted about once, at different ages.
    requests = tuple(
        Request(rid, STEP_S * (3 * rid + 7 * rid % 3), len(prompt), length)
        for rid, (prompt, length) in enumerate(zip(tokens, lengths, strict=True))
    )
    source = "recall lines and this project's own text, data/drift/prompts.jsonl"
    return Prompts(Workload("drift prompts", requests, source), tuple(tokens), tuple(answers))
