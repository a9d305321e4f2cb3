"""Exercises of 05_retraction_counts: counters, victims, the ratio, an allocator, a scheduler."""

from collections import Counter
from typing import Any

from kvlab.engine import NewTokenRatio, NodeConfig, victim_key
from kvlab.index import DcpLayout
from kvlab.teach.draw import Draw, Inputs
from kvlab.teach.exercise import need, task, whole, whole_number


def counts(events: list[tuple[int, str, int]]) -> tuple[int, int]:
    """The counter adds up all; the gauge knows the last step that retracted, and no other."""
    steps = [step for step, what, _ in events if what == "retract"]
    return len(steps), steps.count(steps[-1]) if steps else 0


def _events(d: Draw) -> Inputs:
    events, step = [], 0
    for _ in range(d.randint(1, 3 + 4 * d.size)):
        step += d.choice([0, 0, 1, 7])
        what = d.choice(["retract", "retract", "resume", "finish"])
        events.append((step, what, d.randrange(2 + d.size)))
    return (events,)


@task(
    grade=2,
    answer=counts,
    example=([(3, "retract", 0), (3, "retract", 1), (9, "resume", 1), (9, "retract", 2)],),
    make=_events,
)
def counter_and_gauge(events: list[tuple[int, str, int]]) -> tuple[int, int]:
    """The counter and the gauge.

    A run is a list of events (step, what, request), steps ascending; `what` is "retract", "resume"
    or "finish", and several requests may be retracted in one step. Return (counter, gauge): the
    retractions of the whole run, and those of the last step that retracted (0 if none did).
    Hint: the gauge looks at one step only: which one? A request may be retracted twice
    Source: the metrics num_retracted_requests_total and num_retracted_reqs of SGLang.
    """
    batches = Counter(step for step, what, _ in events if what == "retract")
    return batches.total(), batches[max(batches)] if batches else 0


def victims(running: list[tuple[int, int]], k: int) -> list[int]:
    """Fewest generated first, then the longest prompt, then the last to join."""
    order = sorted(range(len(running)), key=lambda i: (running[i][1], -running[i][0], -i))
    return order[:k]


def _running(d: Draw) -> Inputs:
    n = d.randint(2, 4 + 2 * d.size)
    many = d.choice([2, 3, 5 + 100 * d.size])  # few different numbers make ties
    running = [(d.randint(1, many), d.randint(1, many)) for _ in range(n)]
    return running, d.randint(1, n - 1)


@task(grade=2, answer=victims, example=([(16, 5), (64, 2), (16, 2), (64, 2)], 3), make=_running)
def victim_order(running: list[tuple[int, int]], k: int) -> list[int]:
    """Who leaves first?

    `running` are the running requests (prompt tokens, generated tokens), in the order in which they
    joined. k of them are retracted, by the rule of the node: fewest generated first, among equals
    the longest prompt, among equals the last to join. Return their places in `running`, in the
    order in which they leave.
    Hint: sort by three numbers, two of them negated
    Source: ScheduleBatch.retract_decode of SGLang.
    """
    left, out = dict(enumerate(running)), []
    for _ in range(k):
        out.append(min(left, key=lambda i: victim_key(left[i][1], left[i][0], i)))
        del left[out[-1]]
    return out


def ratio(survivors: list[tuple[int, int]]) -> float:
    """What they have and 20 steps more for each, of all that they may generate."""
    have = sum(generated for generated, _ in survivors) + 20 * len(survivors)
    return min(1.0, have / (sum(asked for _, asked in survivors) + 1))


def _survivors(d: Draw) -> Inputs:
    asked = [d.randint(1, 40 + 100 * d.size) for _ in range(d.randint(1, 2 + d.size))]
    return ([(d.randint(1, most), most) for most in asked],)


@task(grade=3, answer=ratio, example=([(30, 100), (10, 149)],), make=_survivors, core=False)
def new_token_ratio(survivors: list[tuple[int, int]]) -> float:
    """The ratio after a retraction.

    After a retraction the node expects more of the requests that stay. `survivors` are their
    (generated, asked for) tokens. The new ratio: what all of them have generated, and 20 tokens
    more for each, over one more than all that they have asked for; never above 1. Return it.
    Hint: 20 for each survivor, the 1 once, and the bound at the end
    Source: SGLang's log line '#new_token_ratio: 0.8024 -> 0.9085'.
    """
    return NewTokenRatio.after_retraction(survivors, NodeConfig(DcpLayout(1, 1, 1))).base


class PageAllocator:
    """Hands out widened pages of W slots; a request that ends gives back ranges of positions."""

    def __init__(self, W: int, N: int) -> None:
        self.W = W
        self.free_pages = list(range(1, N + 1))

    def alloc(self, tokens: int) -> list[int]:
        """The pages of a new request, in position order."""
        count = -(-tokens // self.W)
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken

    def free(self, pages: list[int], ranges: list[tuple[int, int]]) -> None:
        """Give back the pages of these half-open position ranges."""
        for begin, end in ranges:
            self.free_pages += pages[begin // self.W : -(-end // self.W)]


def seam(c: int, P: int, kept: int, length: int) -> int:
    """One page of P rows on: a multiple of P, inside the first widened page that is freed."""
    return kept + P


def _ended(d: Draw) -> Inputs:
    c, P, size = d.c, d.P, d.size
    kept = d.randrange(2 + size) * P * c
    return c, P, kept, kept + d.randint(P * c, (2 + size) * P * c)


@task(
    grade=4,
    answer=seam,
    example=(2, 4, 8, 24),
    make=_ended,
    code=(PageAllocator,),
    core=False,
    find=True,
)
def mid_page_seam(
    answer: object,
    c: int,
    P: int,
    kept: int,
    length: int,
    suspect: type[PageAllocator] = PageAllocator,
) -> str:
    """Find the page that is freed twice.

    The allocator below hands out widened pages of W = P * c slots. A request of `length` positions
    ends. Its first `kept` positions (whole widened pages) stay with the prefix cache; the rest is
    freed in two ranges, [kept, seam) and [seam, length), because somebody capped a length at a
    multiple of P. Return a seam, strictly between, that makes the allocator list a page as free
    twice.
    Hint: which multiples of P are no multiples of W?
    Source: SGLang pull request 38941.
    """
    cut = whole_number(answer, "position")
    need(kept < cut < length, f"{cut} does not cut [{kept}, {length}) into two ranges")
    need(cut % P == 0, f"{cut} is no multiple of P = {P}: nobody cuts there")
    allocator = suspect(P * c, length // (P * c) + 3)
    pages = allocator.alloc(length)
    allocator.free_pages = []
    allocator.free(pages, [(kept, cut), (cut, length)])
    freed = allocator.free_pages
    twice = [page for page in sorted(freed) if freed.count(page) > 1]
    told = f"[{kept}, {cut}) and [{cut}, {length}) give back pages {freed}"
    need(bool(twice), f"{told}, each once, as it should be")
    return f"{told}: page {twice[0]} twice, and two requests will get it"


class DecodeBatch:
    """The running requests of a node, each as [prompt, generated], the oldest first."""

    def __init__(self, W: int, running: list[list[int]], free: int) -> None:
        self.W, self.running, self.free = W, running, free
        self.total = free + self.held()

    def held(self) -> int:
        """Pages that the running requests hold: KV is written for all tokens but the newest."""
        return sum(-(-(prompt + generated - 1) // self.W) for prompt, generated in self.running)

    def needed(self) -> int:
        """Pages that the next forward opens."""
        return sum((prompt + generated - 1) % self.W == 0 for prompt, generated in self.running)

    def retract(self) -> list[list[int]]:
        """Retract until the next forward fits, or one request is left: the victims."""
        victims = []
        while self.needed() > self.free and len(self.running) > 1:
            # Fewest generated, then the longest prompt, then the last to join.
            victim = min(reversed(self.running), key=lambda request: (request[1], -request[0]))
            self.running.remove(victim)
            self.free += -(-sum(victim) // self.W)
            victims.append(victim)
        return victims

    def audit(self) -> bool:
        """Whether free and held pages add up to those of the pool."""
        return self.free + self.held() == self.total


def expose(c: int, P: int) -> tuple[list[list[int]], int]:
    """The victim's next token opens a page: it does not hold that page yet."""
    W = P * c
    return [[2 * W, 5], [W, 1]], 0


@task(
    grade=5,
    answer=expose,
    example=(2, 2),
    make=lambda d: (d.c, d.P if d.size < 3 else d.number(2)),
    code=(DecodeBatch,),
    find=True,
)
def books_of_the_scheduler(
    answer: Any, c: int, P: int, suspect: type[DecodeBatch] = DecodeBatch
) -> str:
    """Find the bug in this scheduler.

    The class below retracts until the next forward fits, and keeps its books: free pages and held
    pages must add up. There is one bug. Return (running, free) that exposes it: two or more
    requests [prompt, generated], each number at least 1, and the free pages of the pool, such that
    after retract() the audit fails. W = P * c.
    Hint: compare what held() counts for a request with what retract() gives back for it
    Source: SGLang issues 14939 and 6731 (tokens and pages mixed up in the books).
    """
    meant = "two or more requests and a number of free pages are meant"
    need(isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], list), meant)
    running, free = answer
    need(len(running) > 1 and type(free) is int and free >= 0, meant)
    for request in running:
        told = f"{request!r} is no [prompt, generated] of at least 1 each"
        need(len(whole(request, told)) == 2 and min(request) >= 1, told)
    batch = suspect(P * c, [*running], free)
    before, victims = batch.needed(), batch.retract()
    need(bool(victims), f"the next forward needs {before} pages of {free}: nobody leaves")
    told = f"victims {victims}; then {batch.free} free and {batch.held()} held of {batch.total}"
    need(not batch.audit(), f"{told} pages: the books are right")
    return f"{told} pages: the books are wrong"
