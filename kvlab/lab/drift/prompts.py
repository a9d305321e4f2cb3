"""The requests of the study: recall lines and text of this project, stored with it.

``data/drift/prompts.jsonl`` holds one request a line. Its prompts are bytes (ASCII), made once and
kept, so that they are the same under every version of Python; text is taken from this project's own
sources, which the shipped checkpoint was not trained on. Each prompt looks like

    set qk=5f zt=0c bf=9e             8 to 16 pairs
    ... some text ...
    get zt=0c bf=                     the answer is only in the rows of the pair

and ends where the model must recall. A byte is a token id below 256: another model gets the same
ids, whatever they mean to it.
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
        if output_tokens is not None and output_tokens < 2:
            raise WorkloadError(
                f"a request decodes at least one token after its prefill's: got output_tokens="
                f"{output_tokens}, the bound is 2"
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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise WorkloadError(
            f"prompts are a file of JSON lines in UTF-8: {str(path)!r} gives {reason}; name "
            f"another file, or none for the requests that are stored with kvlab"
        ) from None
    if not lines:
        raise WorkloadError(
            f"a file of prompts holds at least 1 request, one a line: {str(path)!r} has 0 lines; "
            f"write a line with prompt, answer and output_tokens"
        )
    tokens, lengths, answers = [], [], []
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line, object_pairs_hook=once)
            prompt, length = found["prompt"].encode("ascii"), found["output_tokens"]
            answers.append(found["answer"].encode("ascii"))
            if not prompt or type(length) is not int or length < 2:
                raise ValueError("an empty prompt, or output_tokens that is no int of at least 2")
            if len(prompt) + length > LONGEST:
                raise ValueError(
                    f"{len(prompt)} + {length} positions of prompt and output, the bound is "
                    f"{LONGEST}"
                )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise WorkloadError(
                f"a line of prompts holds prompt and answer in ASCII and output_tokens >= 2: line "
                f"{number} of {path.name} gives {type(error).__name__}: {error}; correct it"
            ) from None
        tokens.append(tuple(prompt))
        lengths.append(length)
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
