"""A workload is a list of requests: when each arrives, how long its prompt is, how much it says.

Nothing here knows of pools or of a batch size. A closed loop is a workload whose arrivals are all
0. A generated length is ``median * exp(sigma * z)`` for a standard normal z, rounded and clipped:
median 6000, sigma 0.9, z = 1 gives 14758. Same seed, same workload, on every machine.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
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

    ``dropped`` counts requests of the source that generated nothing and were left out. Types are
    strict (no bool, no NumPy scalar), so that numbers compare, hash and print alike everywhere.
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
            raise WorkloadError(f"dropped counts requests, at least 0: got {self.dropped!r}")
        if type(self.requests) is not tuple or not self.requests:
            raise WorkloadError(
                f"a workload holds at least 1 request in a tuple: got {len(self.requests)} in a "
                f"{type(self.requests).__name__}; check the file or the filter that made it"
            )
        before = 0.0
        for index, request in enumerate(self.requests):
            rid, arrival = request.rid, request.arrival_s
            prompt, output = request.prompt_tokens, request.output_tokens
            if not (
                rid == index
                and type(rid) is type(prompt) is type(output) is int
                and type(arrival) is float
                and before <= arrival < math.inf  # NaN fails it too
                and 1 <= prompt <= MAX_TOKENS
                and 1 <= output <= MAX_TOKENS
            ):
                raise WorkloadError(
                    f"a request has rid 0, 1, ... in order, arrival_s a finite float not below the "
                    f"one before it, tokens ints in [1, {MAX_TOKENS}]: got {request} at position "
                    f"{index} of {len(self.requests)}, after arrival_s={before}; sort them, or "
                    f"use Workload.from_arrays(...), which numbers and converts"
                )
            before = arrival

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
        """A workload of three columns ``(n,)``, NumPy arrays welcome. Errors: ValueError when their
        lengths differ, WorkloadError when a rule of requests is broken."""
        columns = [np.asarray(list(c)).tolist() for c in (arrival_s, prompt_tokens, output_tokens)]
        rows = zip(*columns, strict=True)
        requests = tuple(Request(rid, float(a), p, o) for rid, (a, p, o) in enumerate(rows))
        return cls(name, requests, source, dropped)

    def __len__(self) -> int:
        return len(self.requests)

    def __hash__(self) -> int:
        # The generated hash would walk every request; equal workloads have equal digests.
        return hash((self.name, self.source, self.digest))

    def head(self, n: int) -> "Workload":
        """The first ``n`` requests as a workload of their own (all of them if n >= len)."""
        if type(n) is not int or n < 1:
            raise WorkloadError(f"head(n) keeps the first n requests, n >= 1: got {n!r}")
        if n >= len(self):
            return self
        source = f"{self.source}; first {n} of {len(self)} requests"
        return replace(self, requests=self.requests[:n], source=source)

    @cached_property
    def arrivals(self) -> NDArray[np.float64]:
        """Arrival times in seconds, ``(n,)``."""
        return np.array([r.arrival_s for r in self.requests])

    @cached_property
    def prompts(self) -> NDArray[np.int64]:
        """Prompt lengths in tokens, ``(n,)``."""
        return np.array([r.prompt_tokens for r in self.requests], np.int64)

    @cached_property
    def outputs(self) -> NDArray[np.int64]:
        """Output lengths in tokens, ``(n,)``."""
        return np.array([r.output_tokens for r in self.requests], np.int64)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (64 hex digits) of the numbers alone as little-endian bytes."""
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

        ``duration_s`` runs from the first arrival to the last; ``rate_per_s`` is None if it is 0.
        """
        duration = float(self.arrivals[-1] - self.arrivals[0])
        prompt, output = int(self.prompts.sum()), int(self.outputs.sum())
        told: dict[str, Any] = {
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
                told[f"{label}_{key}"] = int(value)
        return told | {"fingerprint": self.fingerprint, "source": self.source}

    def __repr__(self) -> str:
        told = self.summary()
        return (
            f"Workload({self.name!r}: {len(self):,} requests, {told['total_tokens']:,} tokens; "
            f"prompt p50 {told['prompt_p50']:,} p99 {told['prompt_p99']:,}; "
            f"output p50 {told['output_p50']:,} p99 {told['output_p99']:,}; "
            f"{self.fingerprint})"
        )

    def _repr_html_(self) -> str:
        """The summary, for a notebook cell."""
        shown = {int: "{:,}", float: "{:,.3f}", str: "{}", type(None): "all at once"}
        pairs = [(k, shown[type(v)].format(v)) for k, v in self.summary().items()]
        return html(facts("Workload", pairs))


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
                f"(deviation of the log-length) in [0, 10]: got {self!r}"
            )

    def at(self, quantiles: NDArray[np.float64]) -> list[int]:
        """The lengths ``(n,)`` at these quantiles, each strictly between 0 and 1."""
        normal = [NormalDist().inv_cdf(q) for q in quantiles.tolist()]
        drawn = [round(self.median * math.exp(self.sigma * z)) for z in normal]
        return [min(max(n, self.minimum), self.maximum) for n in drawn]


@dataclass(frozen=True, slots=True)
class LengthModel:
    """How long prompts and outputs are, drawn independently of each other."""

    prompt: Lognormal
    output: Lognormal

    def draw(self, uniform: NDArray[np.float64]) -> tuple[list[int], list[int]]:
        """Prompts and outputs at the first two columns of ``uniform``."""
        return self.prompt.at(uniform[:, 0]), self.output.at(uniform[:, 1])

    def __str__(self) -> str:
        return f"prompt={astuple(self.prompt)}, output={astuple(self.output)}"


#: Long-context chat: what the shipped workload uses.
LONG_CHAT = LengthModel(
    prompt=Lognormal(median=6000.0, sigma=0.9, minimum=16, maximum=32_768),
    output=Lognormal(median=500.0, sigma=0.8, minimum=1, maximum=4096),
)


def generate_closed_loop(
    n: int, lengths: LengthModel = LONG_CHAT, *, seed: int = 0, name: str = "closed-loop"
) -> Workload:
    """``n`` requests that all arrive at 0.0 s; how many run at once is the node's parameter."""
    uniform = _uniform(n, seed)
    source = f"generate_closed_loop(n={n}, seed={seed}, {lengths})"
    return Workload.from_arrays(name, np.zeros(n), *lengths.draw(uniform), source)


def generate_open_loop(
    n: int,
    rate_per_s: float,
    lengths: LengthModel = LONG_CHAT,
    *,
    seed: int = 0,
    name: str = "open-loop",
) -> Workload:
    """``n`` requests with Poisson arrivals, ``rate_per_s`` a second on average, the first at 0.0 s.

    Gaps are rounded to a microsecond, which hides how mathematics libraries differ.
    """
    if type(rate_per_s) not in (int, float) or not 0 < rate_per_s < math.inf:
        raise WorkloadError(f"rate_per_s is finite and above 0, a second: got {rate_per_s!r}")
    uniform = _uniform(n, seed)
    gaps = [round(-math.log(u) / rate_per_s * 1e6) for u in uniform[1:, 2].tolist()]
    arrivals = np.cumsum([0, *gaps], dtype=np.int64) / 1e6
    source = f"generate_open_loop(n={n}, rate_per_s={rate_per_s!r}, seed={seed}, {lengths})"
    return Workload.from_arrays(name, arrivals, *lengths.draw(uniform), source)


def _uniform(n: int, seed: int) -> NDArray[np.float64]:
    """``(n, 3)`` numbers strictly between 0 and 1: prompt, output, gap of each request. So a
    workload of 200 requests begins with that of 100."""
    if type(n) is not int or n < 1 or type(seed) is not int or seed < 0:
        raise WorkloadError(
            f"n is an int of at least 1, and a seed one of at least 0: got n={n!r}, seed={seed!r}"
        )
    # The raw stream, which NumPy promises to keep; it makes no such promise for `normal`.
    raw = np.random.PCG64(seed).random_raw(3 * n)
    # 52 bits and half a step: neither 0 nor 1 can come out. (53 bits would round up to 1.)
    unit: NDArray[np.float64] = (raw >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53
    return unit.reshape(n, 3)
