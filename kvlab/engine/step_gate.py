"""Who may enter a node that steps: the admission rule, counted anew from the running batch.

The plain twin of ``event_gate.Gate``: nothing is kept from step to step but the new-token ratio, so
every sum is a walk over the requests.

Worked example, reserved rule without reserve, W = 8, 10 free pages: the one running request holds
18 tokens and may reach 94, so it is promised 76 of the 80. A newcomer of 4 tokens needs a page of 8
and finds 4: it waits.
"""

from collections.abc import Iterable

from kvlab.engine import policy
from kvlab.engine.books import Live, NodeBooks
from kvlab.engine.policy import NewTokenRatio, NodeConfig


class StepGate:
    """The admission rule over the books of a node. Tokens."""

    def __init__(self, config: NodeConfig, books: NodeBooks) -> None:
        self._config, self._books = config, books
        self._by_ratio = config.admission == "new_token_ratio"
        self._ratio = NewTokenRatio(config.initial_new_token_ratio)

    def budget(self, retracted: Iterable[Live]) -> float:
        """Tokens for newcomers, less what those on the host are owed."""
        config, running = self._config, self._books.running
        available = self._books.allocator.available_size()
        queued = sum(policy.required_to_resume(live.kv, config) for live in retracted)
        if self._by_ratio:
            left = sum(min(x.still_asked(config), config.clip_max_new_tokens) for x in running)
            return policy.ratio_budget(available, left, self._ratio.value(config)) - queued
        largest = max((live.largest(config) for live in running), default=None)
        single = policy.need_single(largest, self.retractable())
        return policy.allocatable(available, len(running), config, single, queued)

    def retractable(self) -> int:
        """Tokens that the running requests could give back."""
        return sum(live.tokens for live in self._books.running)

    def charge(self, live: Live, budget: float, retractable: int) -> int | None:
        """What a request that waits is charged for entering; None if ``budget`` is not enough."""
        config, asked = self._config, live.still_asked(self._config)
        if self._by_ratio:
            charge = policy.required_by_ratio(live.tokens, asked, config)
            return charge if charge < budget else None
        need, charge = policy.required_to_admit(live.tokens, asked, retractable, config)
        return charge if need <= budget else None

    def note_retraction(self) -> None:
        """Some were retracted: the ratio follows from those that stay."""
        asked = self._config.asked
        rows = [(x.generated, asked(x.request.output_tokens)) for x in self._books.running]
        self._ratio = NewTokenRatio.after_retraction(rows, self._config)

    def note_forward(self) -> None:
        """A forward retracted nothing."""
        self._ratio = self._ratio.after(1)
