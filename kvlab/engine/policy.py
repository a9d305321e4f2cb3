"""The rules of a decode node, as pure functions: a step's need, who is retracted, who may enter.

A request with p prompt and g generated tokens has KV for ``p + g - 1`` of them: that of the newest
is written by the next forward. So a page of W opens exactly when ``(p + g - 1) % W == 0``, and a
retraction backs up a run that is ragged with respect to both P and W. Source: SGLang
``ScheduleBatch.check_decode_mem``, ``retract_decode``, and ``disaggregation/decode.py``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from kvlab.errors import StudyError
from kvlab.index import DcpLayout

Restore = Literal["backup", "recompute"]
HostFull = Literal["abort", "recompute"]
Admission = Literal["reserved", "new_token_ratio"]
LAST_STEP = 2**53  # above it a float does not hold every whole number


@dataclass(frozen=True, slots=True, repr=False)
class NodeConfig:
    """A decode node: its pool and the rules it follows. Units: tokens, unless named otherwise.

    Args:
        layout: pools and allocator; every capacity below is in the widened space.
        concurrency: closed loop: at most this many requests in the system at once; None is an
            open loop, where requests come at their arrival times.
        max_running: request slots of the node (rows of ``req_to_token``); None means no bound.
        reserved_decode_tokens: room kept for each running request when another enters (upstream
            ``num_reserved_decode_tokens``).
        clip_max_new_tokens: bound on the output that admission counts with.
        max_new_tokens: what clients ask for; None: each asks for exactly what it will generate.
        restore: "backup" copies KV to the host and back (PD decode); "recompute" prefills again.
        admission: "reserved" is the PD rule, "new_token_ratio" that of a node that prefills.
        force_retract_interval: retract one request every n-th forward; None: only when short.
        host_capacity_tokens: tokens that all backups together may hold; None means no bound.
        host_full: what becomes of a victim whose backup the host declines, by this bound or by that
            of a real arena: "abort" ends it; "recompute" retracts it all the same, into the queue
            of those who wait, and its next entry prefills it again. Others still use backups.
        step_time_s: seconds a forward takes, for placing arrivals on steps.
        token_bytes: bytes of one token's KV over all layers, for the byte counters.
    """

    layout: DcpLayout
    concurrency: int | None = None
    max_running: int | None = None
    reserved_decode_tokens: int = 512
    clip_max_new_tokens: int = 4096
    max_new_tokens: int | None = None
    restore: Restore = "backup"
    admission: Admission = "reserved"
    force_retract_interval: int | None = None
    host_capacity_tokens: int | None = None
    host_full: HostFull = "abort"
    step_time_s: float = 0.025
    token_bytes: int = 1
    initial_new_token_ratio: float = 0.7
    min_new_token_ratio: float = 0.098
    ratio_decay_steps: int = 600
    retract_decode_steps: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.layout, DcpLayout):
            raise StudyError(f"layout must be a DcpLayout: got {type(self.layout).__name__}")
        for name, low in _BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise StudyError(f"{name} must be an int of at least {low}: got {value!r}")
        if not 0 < self.step_time_s < float("inf"):
            raise StudyError(
                f"step_time_s must be a finite time above 0 seconds: got {self.step_time_s!r}"
            )
        least, most = self.min_new_token_ratio, self.initial_new_token_ratio
        if not 0 < least <= most <= 1:
            raise StudyError(
                f"ratios must satisfy 0 < min <= initial <= 1: got min_new_token_ratio={least}, "
                f"initial_new_token_ratio={most}"
            )
        for name, kind in (("restore", Restore), ("host_full", HostFull), ("admission", Admission)):
            given, allowed = getattr(self, name), get_args(kind)
            if given not in allowed:
                raise StudyError(f"{name} must be one of {', '.join(allowed)}: got {given!r}")

    def host_has_room(self, kv_tokens: int, host_tokens: int) -> bool:
        """Whether a backup of ``kv_tokens`` fits beside the ``host_tokens`` that the host holds."""
        bound = self.host_capacity_tokens
        return bound is None or host_tokens + kv_tokens <= bound

    def asked(self, output_tokens: int) -> int:
        """What the client of a request asks for, in output tokens."""
        return self.max_new_tokens if self.max_new_tokens is not None else output_tokens

    def arrival_step(self, arrival_s: float, rid: int | None = None) -> int:
        """The first step at which a request of this arrival time is seen. Errors: StudyError, which
        names ``rid``, past step 2**53 - 1."""
        before = -arrival_s // self.step_time_s  # a whole number of steps, rounded down, negative
        if not -before < LAST_STEP:
            raise StudyError(
                f"an arrival falls on a step below 2**53: got arrival_s={arrival_s!r}"
                f"{'' if rid is None else f' of request {rid}'} at step_time_s="
                f"{self.step_time_s!r}; count seconds from the first arrival, or take longer steps"
            )
        return -int(before)

    def __repr__(self) -> str:
        rules = ((f, getattr(self, f.name)) for f in fields(self))
        given = [f"{f.name}={value!r}" for f, value in rules if value != f.default]
        return f"NodeConfig({', '.join(given)})"  # the defaults left out


_BOUNDS = {
    "concurrency": 1,
    "max_running": 1,
    "reserved_decode_tokens": 0,
    "clip_max_new_tokens": 1,
    "max_new_tokens": 1,
    "force_retract_interval": 1,
    "host_capacity_tokens": 0,
    "token_bytes": 1,
    "ratio_decay_steps": 1,
    "retract_decode_steps": 0,
}
# For these None is no bound, or no rule.
_OPTIONAL = {f.name for f in fields(NodeConfig) if f.default is None}


def paged(tokens: int, layout: DcpLayout) -> int:
    """``tokens`` rounded up to whole widened pages, in tokens."""
    return -(-tokens // layout.widened_page_size) * layout.widened_page_size


def victim_key(generated: int, prompt_tokens: int, joined: int) -> tuple[int, int, int]:
    """Order of retraction, smallest first: fewest generated, longest prompt, latest to join (of
    ``joined``, a count of entries into the batch)."""
    # Upstream sorts by (generated, -prompt) descending and pops from the end; the sort is stable,
    # so among equals the last of the batch goes first.
    return (generated, -prompt_tokens, -joined)


def allocatable(
    available: int, running: int, config: NodeConfig, need_single: int = 0, queued: int = 0
) -> int:
    """Tokens that may be handed out beside what running requests are promised, and ``queued``, what
    the retracted are owed (counted for new requests only)."""
    return available - max(config.reserved_decode_tokens * running, need_single) - queued


def need_single(largest: int | None, retractable: int) -> int:
    """What the largest running request lacks to finish alone, were all others retracted: ``max(
    prompt + min(asked, clip))`` minus all their tokens, maybe negative; 0 if nothing runs (None).
    """
    return 0 if largest is None else largest - retractable


def required_to_resume(kv_tokens: int, config: NodeConfig) -> int:
    """Tokens that must be allocatable before a retracted request comes back."""
    return paged(kv_tokens, config.layout) + config.reserved_decode_tokens


def required_to_admit(
    fill: int, still_asked: int, retractable: int, config: NodeConfig
) -> tuple[int, int]:
    """(what must be allocatable, what is then charged) for a request that enters with ``fill``:
    room for its pages and reserve, and, were all others retracted, for its whole output (PD)."""
    charge = required_to_resume(fill, config)
    projected = fill + min(still_asked, config.clip_max_new_tokens) - retractable
    return max(charge, projected), charge


def required_by_ratio(fill: int, still_asked: int, config: NodeConfig) -> int:
    """What a request must find (strictly less than the budget) under the ratio rule."""
    return paged(fill, config.layout) + min(still_asked, config.clip_max_new_tokens)


def ratio_budget(available: int, outstanding: int, ratio: float) -> float:
    """Tokens left once running requests get ``ratio`` of what they may still generate,
    ``outstanding``: the sum of ``min(asked - generated, clip)``."""
    return available - ratio * outstanding


@dataclass(frozen=True, slots=True)
class NewTokenRatio:
    """The share of its remaining output that each running request is expected to need.

    Set to ``base`` at a retraction, it decays linearly with each forward that retracts nothing.
    A value in closed form, so that stepping and jumping give the same float.
    """

    base: float
    steps: int = 0

    def value(self, config: NodeConfig) -> float:
        """The ratio now, in [min_new_token_ratio, 1] (above ``base`` never)."""
        span = config.initial_new_token_ratio - config.min_new_token_ratio
        decayed = self.base - self.steps * (span / config.ratio_decay_steps)
        return max(decayed, config.min_new_token_ratio)

    def after(self, forwards: int) -> "NewTokenRatio":
        """The ratio after that many forwards without a retraction."""
        return NewTokenRatio(self.base, self.steps + forwards)

    @classmethod
    def after_retraction(
        cls, survivors: Iterable[tuple[int, int]], config: NodeConfig
    ) -> "NewTokenRatio":
        """From (generated, asked) of those that stay: what they have plus 20 steps, of all."""
        rows = list(survivors)
        have = sum(g for g, _ in rows) + config.retract_decode_steps * len(rows)
        return cls(min(1.0, have / (sum(asked for _, asked in rows) + 1)))
