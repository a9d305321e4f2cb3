"""A workload is a list of requests: when each arrives, how long its prompt is, how much it says.

Nothing here knows of pools or of a batch size: how many requests run at once belongs to the node,
and a closed loop is simply a workload whose arrivals are all 0. Worked example, two requests,
300 + 20 tokens in all:

    rid  arrival_s  prompt_tokens  output_tokens
     0      0.0          100             8
     1      1.5          200            12

The types are held strictly (no bool, no numpy scalar): a number that is compared, hashed, printed
and written to JSON must be the same thing everywhere. `Workload.from_arrays` converts. ``digest``
is the SHA-256 of the numbers as little-endian bytes, so it is the same on every machine and says in
a figure's footer which requests were served.

Workloads are loaded (``traces``) or generated: lognormal lengths, all at once or with Poisson
arrivals, from a seed. A length is ``median * exp(sigma * z)`` for a standard normal z, rounded,
then clipped to its bounds; engines cut long requests at a limit in the same way:

    median 6000, sigma 0.9, z = 0   ->  6000
    median 6000, sigma 0.9, z = 1   ->  14758
    median 6000, sigma 0.9, z = 2   ->  36298, clipped to a maximum of 32768

Same seed, same workload, on every machine: the only source of chance is the raw PCG64 stream, which
numpy promises to keep (it makes no such promise for `Generator.normal`), and three numbers of it
belong to each request. So a workload of 200 requests also begins with the workload of 100.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from kvlab.errors import WorkloadError
from kvlab.show import facts, html

# Engines keep positions as int32, and a request holds prompt + output tokens.
MAX_TOKENS = 2**30 - 1


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Units: seconds since the workload began, tokens. Checked by `Workload`."""

    rid: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int


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
        for field, text in (("name", self.name), ("source", self.source)):
            if not text or text != text.strip() or not text.isprintable():
                raise WorkloadError(
                    f"the {field} of a workload is one line of printable text without blanks at "
                    f"its ends: got {text!r}; it stands in the header of a CSV and in figures"
                )
        if type(self.dropped) is not int or self.dropped < 0:
            raise WorkloadError(
                f"dropped counts requests that were left out, at least 0: got {self.dropped!r}"
            )
        if type(self.requests) is not tuple or not self.requests:
            raise WorkloadError(
                f"a workload holds at least 1 request in a tuple: got {len(self.requests)} in a "
                f"{type(self.requests).__name__}; check the file or the filter that made it"
            )
        before = 0.0
        for index, request in enumerate(self.requests):
            if not _is_in_order(request, index, before):
                raise WorkloadError(
                    f"a request has rid 0, 1, ... in order, arrival_s a finite float not below the "
                    f"one before it, tokens ints in [1, {MAX_TOKENS}]: got {request} at position "
                    f"{index} of {len(self.requests)}, after arrival_s={before}; sort them, or "
                    f"use Workload.from_arrays(...), which numbers and converts"
                )
            before = request.arrival_s

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
        kinds = [column.dtype.kind if column.size else "i" for column in columns]
        if len(set(shapes)) != 1 or len(shapes[0]) != 1 or not set(kinds[1:]) <= {"i", "u"}:
            raise WorkloadError(
                f"a workload has one arrival_s and whole prompt_tokens and output_tokens a "
                f"request: got shapes {shapes} of {[str(column.dtype) for column in columns]}; "
                f"pass columns of equal length, and round tokens to int"
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
            raise WorkloadError(f"head(n) keeps the first n requests, n >= 1: got {n!r}")
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
        """The summary, for a notebook cell."""
        pairs = [(key, _told(value)) for key, value in self.summary().items()]
        return html(facts("Workload", pairs))


def _told(value: object) -> str:
    if value is None:
        return "all at once"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _is_in_order(request: Request, index: int, before: float) -> bool:
    rid, arrival = request.rid, request.arrival_s
    prompt, output = request.prompt_tokens, request.output_tokens
    return (
        rid == index
        and type(rid) is type(prompt) is type(output) is int
        and type(arrival) is float
        # A chain that NaN fails, and infinity too.
        and before <= arrival < float("inf")
        and 1 <= prompt <= MAX_TOKENS
        and 1 <= output <= MAX_TOKENS
    )


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths in tokens: ``median * exp(sigma * z)``, clipped to [minimum, maximum]."""

    median: float
    sigma: float
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        whole = type(self.minimum) is type(self.maximum) is int
        ordered = 1 <= self.minimum <= self.median <= self.maximum <= MAX_TOKENS
        if not whole or not ordered or not 0 <= self.sigma <= 10:
            raise WorkloadError(
                f"lengths need ints 1 <= minimum <= median <= maximum <= {MAX_TOKENS} and a sigma "
                f"(deviation of the log-length) in [0, 10]: got {self!r}; 0 makes all lengths "
                f"equal, 1 is typical of chat"
            )

    def at(self, quantiles: NDArray[np.float64]) -> list[int]:
        """Return the lengths ``(n,)`` at these quantiles, each strictly between 0 and 1."""
        inverse = NormalDist().inv_cdf
        return [
            min(max(round(self.median * math.exp(self.sigma * inverse(q))), low), high)
            for low, high in [(self.minimum, self.maximum)]
            for q in quantiles.tolist()
        ]


@dataclass(frozen=True, slots=True)
class LengthModel:
    """How long prompts and outputs are. The two are drawn independently of each other."""

    prompt: Lognormal
    output: Lognormal


#: Long-context chat: what the shipped workload uses.
LONG_CHAT = LengthModel(
    prompt=Lognormal(median=6000.0, sigma=0.9, minimum=16, maximum=32_768),
    output=Lognormal(median=500.0, sigma=0.8, minimum=1, maximum=4096),
)


def generate_closed_loop(
    n: int, lengths: LengthModel = LONG_CHAT, *, seed: int = 0, name: str = "closed-loop"
) -> Workload:
    """Return ``n`` requests that all arrive at 0.0 s.

    How many of them run at once is the scheduler's parameter: a closed loop admits the next request
    when one finishes. Errors: WorkloadError.
    """
    uniform = _uniform(n, seed)
    return Workload.from_arrays(
        name,
        np.zeros(n),
        lengths.prompt.at(uniform[:, 0]),
        lengths.output.at(uniform[:, 1]),
        f"generate_closed_loop(n={n}, seed={seed}, {_shown(lengths)})",
    )


def generate_open_loop(
    n: int,
    rate_per_s: float,
    lengths: LengthModel = LONG_CHAT,
    *,
    seed: int = 0,
    name: str = "open-loop",
) -> Workload:
    """Return ``n`` requests with Poisson arrivals, ``rate_per_s`` a second on average.

    The first arrives at 0.0 s. Gaps are rounded to a microsecond, which hides the last-bit
    differences between mathematics libraries. Errors: WorkloadError.
    """
    if type(rate_per_s) not in (int, float) or not 0 < rate_per_s < math.inf:
        raise WorkloadError(
            f"rate_per_s is a finite number of requests a second above 0: got {rate_per_s!r}; use "
            f"generate_closed_loop(...) for requests that all arrive at once"
        )
    uniform = _uniform(n, seed)
    gaps = [round(-math.log(u) / rate_per_s * 1e6) for u in uniform[1:, 2].tolist()]
    return Workload.from_arrays(
        name,
        np.cumsum([0, *gaps], dtype=np.int64) / 1e6,
        lengths.prompt.at(uniform[:, 0]),
        lengths.output.at(uniform[:, 1]),
        f"generate_open_loop(n={n}, rate_per_s={rate_per_s!r}, seed={seed}, {_shown(lengths)})",
    )


def _shown(lengths: LengthModel) -> str:
    parts = (("prompt", lengths.prompt), ("output", lengths.output))
    return ", ".join(f"{label}={astuple(model)}" for label, model in parts)


def _uniform(n: int, seed: int) -> NDArray[np.float64]:
    """Return ``(n, 3)`` numbers strictly between 0 and 1: prompt, output, gap of each request."""
    if type(n) is not int or n < 1 or type(seed) is not int or seed < 0:
        raise WorkloadError(
            f"n counts requests, an int of at least 1, and a seed is an int of at least 0: got "
            f"n={n!r}, seed={seed!r}"
        )
    raw = np.random.PCG64(seed).random_raw(3 * n)
    # 52 bits and half a step: neither 0 nor 1 can come out. (53 bits would round up to 1.)
    unit: NDArray[np.float64] = (raw >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53
    return unit.reshape(n, 3)
