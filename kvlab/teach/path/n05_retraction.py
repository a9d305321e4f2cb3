"""Exercises of 05_retraction_counts: counters, victims, the ratio, an allocator, a scheduler."""

from collections import Counter
from random import Random

from kvlab.engine import NewTokenRatio, NodeConfig, victim_key
from kvlab.index import DcpLayout
from kvlab.teach import path
from kvlab.teach.exercise import Exercise, Inputs
from kvlab.teach.suspects import DecodeBatch, PageAllocator, batch_exposes, seam_exposes

NOTEBOOK = "05_retraction_counts"


def counts(events: list[tuple[int, str, int]]) -> tuple[int, int]:
    """The counter adds up all; the gauge knows the last step that retracted, and no other."""
    steps = [step for step, what, _ in events if what == "retract"]
    return len(steps), steps.count(steps[-1]) if steps else 0


def _counts(events: list[tuple[int, str, int]]) -> tuple[int, int]:
    batches = Counter(step for step, what, _ in events if what == "retract")
    return batches.total(), batches[max(batches)] if batches else 0


def _events(rng: Random, size: int) -> Inputs:
    events, step = [], 0
    for rid in range(rng.randint(1, 3 + 4 * size)):
        step += rng.choice([0, 0, 1, 7])
        events.append((step, rng.choice(["retract", "retract", "resume", "finish"]), rid))
    rids = [rng.randrange(2 + size) for _ in events]
    return {"events": [(s, what, rid) for (s, what, _), rid in zip(events, rids, strict=True)]}


def victims(running: list[tuple[int, int]], k: int) -> list[int]:
    """Fewest generated first, then the longest prompt, then the last to join."""
    order = sorted(range(len(running)), key=lambda i: (running[i][1], -running[i][0], -i))
    return order[:k]


def _victims(running: list[tuple[int, int]], k: int) -> list[int]:
    left, out = dict(enumerate(running)), []
    for _ in range(k):
        out.append(min(left, key=lambda i: victim_key(left[i][1], left[i][0], i)))
        del left[out[-1]]
    return out


def _running(rng: Random, size: int) -> Inputs:
    n = rng.randint(2, 4 + 2 * size)
    many = rng.choice([2, 3, 5 + 100 * size])  # few different numbers make ties
    running = [(rng.randint(1, many), rng.randint(1, many)) for _ in range(n)]
    return {"running": running, "k": rng.randint(1, n - 1)}


def ratio(survivors: list[tuple[int, int]]) -> float:
    """What they have and 20 steps more for each, of all that they may generate."""
    have = sum(generated for generated, _ in survivors) + 20 * len(survivors)
    return min(1.0, have / (sum(asked for _, asked in survivors) + 1))


def _ratio(survivors: list[tuple[int, int]]) -> float:
    return NewTokenRatio.after_retraction(survivors, NodeConfig(DcpLayout(1, 1, 1))).base


def _survivors(rng: Random, size: int) -> Inputs:
    found = []
    for _ in range(rng.randint(1, 2 + size)):
        asked = rng.randint(1, 40 + 100 * size)
        found.append((rng.randint(1, asked), asked))
    return {"survivors": found}


def seam(c: int, P: int, kept: int, length: int) -> int:
    """One page of P rows on: a multiple of P, inside the first widened page that is freed."""
    return kept + P


def _ended(rng: Random, size: int) -> Inputs:
    c, P = path.ranks(rng, size), path.page(rng, size)
    W = P * c
    kept = rng.randrange(2 + size) * W
    return {"c": c, "P": P, "kept": kept, "length": kept + rng.randint(W, (2 + size) * W)}


def expose(c: int, P: int) -> tuple[list[list[int]], int]:
    """The victim's next token opens a page: it does not hold that page yet."""
    W = P * c
    return [[2 * W, 5], [W, 1]], 0


def _layout(rng: Random, size: int) -> Inputs:
    P = path.page(rng, size) if size < 3 else path.number(rng, size, low=2)
    return {"c": path.ranks(rng, size), "P": P}


ALL = (
    Exercise(
        "counter-and-gauge",
        NOTEBOOK,
        2,
        "The counter and the gauge",
        """A run is a list of events (step, what, request), steps ascending; `what` is "retract",
        "resume" or "finish", and several requests may be retracted in one step. Return (counter,
        gauge): the retractions of the whole run, and those of the last step that retracted (0 if
        none did).""",
        answer=counts,
        spec=_counts,
        example={
            "events": [(3, "retract", 0), (3, "retract", 1), (9, "resume", 1), (9, "retract", 2)]
        },
        make=_events,
        hint="the gauge looks at one step only: which one? A request may be retracted twice",
        source="the metrics num_retracted_requests_total and num_retracted_reqs of SGLang",
    ),
    Exercise(
        "victim-order",
        NOTEBOOK,
        2,
        "Who leaves first?",
        """`running` are the running requests (prompt tokens, generated tokens), in the order in
        which they joined. k of them are retracted, by the rule of the node: fewest generated
        first, among equals the longest prompt, among equals the last to join. Return their places
        in `running`, in the order in which they leave.""",
        answer=victims,
        spec=_victims,
        example={"running": [(16, 5), (64, 2), (16, 2), (64, 2)], "k": 3},
        make=_running,
        hint="sort by three numbers, two of them negated",
        source="ScheduleBatch.retract_decode of SGLang",
    ),
    Exercise(
        "new-token-ratio",
        NOTEBOOK,
        3,
        "The ratio after a retraction",
        """After a retraction the node expects more of the requests that stay. `survivors` are
        their (generated, asked for) tokens. The new ratio: what all of them have generated, and 20
        tokens more for each, over one more than all that they have asked for; never above 1.
        Return it.""",
        answer=ratio,
        spec=_ratio,
        example={"survivors": [(30, 100), (10, 149)]},
        make=_survivors,
        hint="20 for each survivor, the 1 once, and the bound at the end",
        source="SGLang's log line '#new_token_ratio: 0.8024 -> 0.9085'",
        core=False,
    ),
    Exercise(
        "mid-page-seam",
        NOTEBOOK,
        4,
        "Find the page that is freed twice",
        """The allocator below hands out widened pages of W = P * c slots. A request of `length`
        positions ends. Its first `kept` positions (whole widened pages) stay with the prefix
        cache; the rest is freed in two ranges, [kept, seam) and [seam, length), because somebody
        capped a length at a multiple of P. Return a seam, strictly between, that makes the
        allocator list a page as free twice.""",
        answer=seam,
        judge=seam_exposes,
        example={"c": 2, "P": 4, "kept": 8, "length": 24},
        make=_ended,
        hint="which multiples of P are no multiples of W?",
        source="SGLang pull request 38941",
        code=(PageAllocator,),
        core=False,
    ),
    Exercise(
        "books-of-the-scheduler",
        NOTEBOOK,
        5,
        "Find the bug in this scheduler",
        """The class below retracts until the next forward fits, and keeps its books: free pages
        and held pages must add up. There is one bug. Return (running, free) that exposes it: two
        or more requests [prompt, generated], each number at least 1, and the free pages of the
        pool, such that after retract() the audit fails. W = P * c.""",
        answer=expose,
        judge=batch_exposes,
        example={"c": 2, "P": 2},
        make=_layout,
        hint="compare what held() counts for a request with what retract() gives back for it",
        source="SGLang issues 14939 and 6731 (tokens and pages mixed up in the books)",
        code=(DecodeBatch,),
    ),
)
