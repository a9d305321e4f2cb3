"""Generated workloads: lognormal lengths, all at once or with Poisson arrivals, from a seed.

A `LengthModel` is eight numbers: median, spread and bounds of prompts and of outputs. A length is
``median * exp(sigma * z)`` for a standard normal z, rounded, then clipped to its bounds; engines
cut long requests at a limit in the same way, so some requests sit exactly at the bound.

    median 6000, sigma 0.9, z = 0   ->  6000
    median 6000, sigma 0.9, z = 1   ->  14758
    median 6000, sigma 0.9, z = 2   ->  36298, clipped to a maximum of 32768

Same seed, same workload, on every machine: the only source of chance is the raw PCG64 stream, which
numpy promises to keep (it makes no such promise for `Generator.normal`), and three numbers of it
belong to each request. So a workload of 200 requests also begins with the workload of 100.

`fit_length_model` goes the other way: it reduces a trace to those eight numbers, so that a
look-alike can be published where the trace cannot.
"""

import math
from dataclasses import astuple, dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.workload.base import MAX_TOKENS, Workload
from kvlab.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lengths in tokens: ``median * exp(sigma * z)``, clipped to [minimum, maximum]."""

    median: float
    sigma: float
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if type(self.minimum) is not int or type(self.maximum) is not int:
            raise WorkloadError(
                f"the bounds of a length are ints in [1, {MAX_TOKENS}]: got minimum="
                f"{self.minimum!r}, maximum={self.maximum!r}; round them"
            )
        if not 1 <= self.minimum <= self.maximum <= MAX_TOKENS:
            raise WorkloadError(
                f"lengths need 1 <= minimum <= maximum <= {MAX_TOKENS}: got minimum="
                f"{self.minimum}, maximum={self.maximum}; a request has at least 1 token of each"
            )
        if not self.minimum <= self.median <= self.maximum:
            raise WorkloadError(
                f"the median lies within the bounds [{self.minimum}, {self.maximum}]: got "
                f"median={self.median!r}; most lengths would be clipped otherwise"
            )
        if not 0 <= self.sigma <= 10:
            raise WorkloadError(
                f"sigma, the standard deviation of the log-length, lies in [0, 10]: got "
                f"{self.sigma!r}; 0 makes all lengths equal, 1 is typical of chat"
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


def fit_length_model(workload: Workload) -> LengthModel:
    """Return the lognormal look-alike of a workload's lengths.

    Kept of each column: its median, the standard deviation of its logarithms, its smallest and its
    largest value. Order, arrivals, and which prompt belonged to which output are gone; the two
    extremes are single observations, so widen them before publishing if they are secret.
    """
    return LengthModel(_fit(workload.prompts), _fit(workload.outputs))


def _fit(lengths: NDArray[np.int64]) -> Lognormal:
    return Lognormal(
        median=float(np.median(lengths)),
        # Six digits: more would carry the last bits of the machine's logarithm.
        sigma=min(round(float(np.log(lengths).std()), 6), 10.0),
        minimum=int(lengths.min()),
        maximum=int(lengths.max()),
    )


def _shown(lengths: LengthModel) -> str:
    parts = (("prompt", lengths.prompt), ("output", lengths.output))
    return ", ".join(f"{label}={astuple(model)}" for label, model in parts)


def _uniform(n: int, seed: int) -> NDArray[np.float64]:
    """Return ``(n, 3)`` numbers strictly between 0 and 1: prompt, output, gap of each request."""
    if type(n) is not int or n < 1:
        raise WorkloadError(
            f"n is the number of requests to generate, at least 1: got {n!r}; pass an int"
        )
    if type(seed) is not int or seed < 0:
        raise WorkloadError(
            f"a seed is an int of at least 0: got {seed!r}; any one gives a repeatable workload"
        )
    raw = np.random.PCG64(seed).random_raw(3 * n)
    # 52 bits and half a step: neither 0 nor 1 can come out. (53 bits would round up to 1.)
    unit: NDArray[np.float64] = (raw >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53
    return unit.reshape(n, 3)
