"""A workload is a list of requests: when each arrives, how long its prompt is, how much it says.

Nothing here knows of pools or of a batch size: how many requests run at once belongs to the
scheduler, and a closed loop is simply a workload whose arrivals are all 0.

Worked example, two requests, 300 + 20 tokens in all:

    rid  arrival_s  prompt_tokens  output_tokens
     0      0.0          100             8
     1      1.5          200            12

``digest`` is the SHA-256 of those numbers as little-endian bytes, so it is the same on every
machine and says in a figure's footer which requests were served.
"""

import hashlib
import html
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvlab.engine.workload.request import MAX_TOKENS, Request, require_label, require_requests
from kvlab.errors import WorkloadError

__all__ = ["MAX_TOKENS", "Request", "Workload"]


@dataclass(frozen=True, repr=False)
class Workload:
    """Requests in order of arrival, numbered 0 .. n-1; ``source`` says where they come from.

    ``dropped`` counts the requests of the source that generated nothing and were left out.
    Errors: WorkloadError, naming the first request that breaks a rule.
    """

    name: str
    requests: tuple[Request, ...]
    source: str
    dropped: int = 0

    def __post_init__(self) -> None:
        require_label("name", self.name)
        require_label("source", self.source)
        if type(self.dropped) is not int or self.dropped < 0:
            raise WorkloadError(
                f"dropped counts requests that were left out and is a whole number of at least 0: "
                f"got {self.dropped!r}; leave it at 0 if none were"
            )
        if type(self.requests) is not tuple:
            raise WorkloadError(
                f"requests must be a tuple, so that a workload cannot change under a study: got "
                f"{type(self.requests).__name__}; pass tuple(requests) or use "
                f"Workload.from_arrays(...)"
            )
        if not self.requests:
            raise WorkloadError(
                "a workload holds at least 1 request: got 0; check the file or the filter that "
                "made it"
            )
        require_requests(self.requests)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        arrival_s: Iterable[float],
        prompt_tokens: Iterable[int],
        output_tokens: Iterable[int],
        source: str,
        dropped: int = 0,
    ) -> "Workload":
        """Return a workload from three columns of equal length ``(n,)``, numpy arrays welcome.

        Errors: WorkloadError when the lengths differ, a length is not whole, or a rule of
        requests is broken.
        """
        columns = [
            np.asarray(column if isinstance(column, np.ndarray) else list(column))
            for column in (arrival_s, prompt_tokens, output_tokens)
        ]
        shapes = [column.shape for column in columns]
        if any(len(shape) != 1 for shape in shapes) or len(set(shapes)) != 1:
            raise WorkloadError(
                f"arrival_s, prompt_tokens and output_tokens need one number a request: got shapes "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}; pass three one-dimensional columns of "
                f"equal length"
            )
        for label, column in zip(("prompt_tokens", "output_tokens"), columns[1:], strict=True):
            if column.size and column.dtype.kind not in "iu":
                raise WorkloadError(
                    f"{label} counts tokens, so it must hold integers: got dtype {column.dtype}; "
                    f"round it and pass {label}.astype(int)"
                )
        arrivals, prompts, outputs = (column.tolist() for column in columns)
        rows = enumerate(zip(arrivals, prompts, outputs, strict=True))
        requests = tuple(Request(rid, float(a), p, o) for rid, (a, p, o) in rows)
        return cls(name, requests, source, dropped)

    def __len__(self) -> int:
        return len(self.requests)

    def __hash__(self) -> int:
        # The generated hash would walk every request; equal workloads have equal digests.
        return hash((self.name, self.source, self.digest))

    def head(self, n: int) -> "Workload":
        """Return the first ``n`` requests as a workload of their own (all of them if n >= len)."""
        if type(n) is not int or n < 1:
            raise WorkloadError(
                f"head(n) keeps the first n requests, n >= 1: got {n!r} for {self.name!r} with "
                f"{len(self)} requests; pass a number from 1 to {len(self)}"
            )
        if n >= len(self):
            return self
        return replace(
            self,
            requests=self.requests[:n],
            source=f"{self.source}; first {n} of {len(self)} requests",
        )

    @cached_property
    def arrivals(self) -> NDArray[np.float64]:
        """Arrival times in seconds, float64 ``(n,)``, read-only."""
        return self._column("arrival_s", np.float64)

    @cached_property
    def prompts(self) -> NDArray[np.int64]:
        """Prompt lengths in tokens, int64 ``(n,)``, read-only."""
        return self._column("prompt_tokens", np.int64)

    @cached_property
    def outputs(self) -> NDArray[np.int64]:
        """Output lengths in tokens, int64 ``(n,)``, read-only."""
        return self._column("output_tokens", np.int64)

    def _column(self, field: str, dtype: type[Any]) -> NDArray[Any]:
        values = np.fromiter((getattr(r, field) for r in self.requests), dtype, len(self))
        values.flags.writeable = False
        return values

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the numbers alone: not of the name, not of the source."""
        sha = hashlib.sha256(b"kvlab workload 1\n")
        # Adding 0.0 turns -0.0 into 0.0: equal workloads must have equal digests.
        sha.update((self.arrivals + 0.0).astype("<f8").tobytes())
        sha.update(self.prompts.astype("<i8").tobytes())
        sha.update(self.outputs.astype("<i8").tobytes())
        return sha.hexdigest()

    @property
    def fingerprint(self) -> str:
        """The first 12 digits of `digest`: short enough for a figure's footer."""
        return self.digest[:12]

    def summary(self) -> dict[str, Any]:
        """Counts, totals and percentiles (nearest rank, so each one is an observed length).

        ``duration_s`` runs from the first arrival to the last; ``rate_per_s`` is None when that
        is 0, as in a closed loop.
        """
        duration = float(self.arrivals[-1] - self.arrivals[0])
        prompt, output = int(self.prompts.sum()), int(self.outputs.sum())
        facts: dict[str, Any] = {
            "name": self.name,
            "requests": len(self),
            "dropped": self.dropped,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "total_tokens": prompt + output,
            "duration_s": duration,
            "rate_per_s": (len(self) - 1) / duration if duration > 0 else None,
        }
        for label, lengths in (("prompt", self.prompts), ("output", self.outputs)):
            for key, percent in (("min", 0), ("p50", 50), ("p90", 90), ("p99", 99), ("max", 100)):
                value = np.percentile(lengths, percent, method="inverted_cdf")
                facts[f"{label}_{key}"] = int(value)
        return facts | {"fingerprint": self.fingerprint, "source": self.source}

    def to_frame(self) -> pd.DataFrame:
        """One row a request: rid, arrival_s, prompt_tokens, output_tokens."""
        return pd.DataFrame(
            {
                "rid": np.arange(len(self), dtype=np.int64),
                "arrival_s": self.arrivals,
                "prompt_tokens": self.prompts,
                "output_tokens": self.outputs,
            }
        )

    def __repr__(self) -> str:
        facts = self.summary()
        return (
            f"Workload({self.name!r}: {len(self):,} requests, {facts['total_tokens']:,} tokens; "
            f"prompt p50 {facts['prompt_p50']:,} p99 {facts['prompt_p99']:,}; "
            f"output p50 {facts['output_p50']:,} p99 {facts['output_p99']:,}; "
            f"{self.fingerprint})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(_shown(value))}</td></tr>"
            for key, value in self.summary().items()
        )
        return f"<table><caption>Workload</caption>{rows}</table>"


def _shown(value: object) -> str:
    if value is None:
        return "all at once"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
