"""Who may enter, and when: the admission rule of a node, asked for now or for a later forward.

With no page opened and nobody joined or gone, the budget only grows and what a request must find
only falls: running requests gain tokens that could be retracted, and the new-token ratio decays.
Hence the first forward at which a request may enter is found by bisection, with the very
comparison that admits it.

Worked example, reserved rule without reserve, W = 8, 10 free pages: the one running request holds
18 tokens and may reach 94, so it is promised 76 of the 80, and a newcomer of 4 tokens, which needs
a page of 8, finds 4. Four forwards later the promise is 72: it finds 8 and enters.
"""

from bisect import bisect_left

from kvlab.engine.event_state import Batch, Member
from kvlab.engine.policy import (
    NewTokenRatio,
    NodeConfig,
    allocatable,
    need_single,
    ratio_budget,
    required_by_ratio,
    required_to_admit,
)


class Gate:
    """The admission rule over a batch. Tokens; ``free`` and ``queued`` belong to the node."""

    def __init__(self, config: NodeConfig, batch: Batch) -> None:
        self._config = config
        self._batch = batch
        self._width = config.layout.widened_page_size
        self._by_ratio = config.admission == "new_token_ratio"
        self._ratio = NewTokenRatio(config.initial_new_token_ratio)

    def budget(self, clock: int, free: int, queued: int, ahead: int = 0) -> float:
        """Tokens for newcomers ``ahead`` forwards after ``clock``, if no page opens until then.

        ``free`` pages; ``queued`` tokens are owed to the retracted. `Batch.settle` comes first.
        """
        available = free * self._width
        if self._by_ratio:
            ratio = self._ratio.after(ahead).value(self._config)
            return ratio_budget(available, self._batch.outstanding(clock + ahead), ratio) - queued
        alone = need_single(self._batch.largest(), self._batch.tokens(clock + ahead))
        return allocatable(available, self._batch.size, self._config, alone, queued)

    def terms(self, member: Member, retractable: int) -> tuple[int, int]:
        """What a request that waits must find, and what it is charged."""
        fill = member.prompt + member.generated
        if self._by_ratio:
            need = required_by_ratio(fill, member.still_asked, self._config)
            return need, need
        return required_to_admit(fill, member.still_asked, retractable, self._config)

    def admits(self, budget: float, need: int) -> bool:
        """Whether ``budget`` is enough for ``need``; the ratio rule wants strictly more."""
        return need < budget if self._by_ratio else need <= budget

    def forwards_to_entry(
        self, head: Member, clock: int, free: int, queued: int, bound: int
    ) -> int:
        """Forwards after which ``head`` may enter, in [1, bound]; ``bound`` if not before.

        Never too late. Pages that open meanwhile can make it too early; then ask again.
        """
        self._batch.settle(clock)
        bound = self._batch.bend(clock + bound) - clock

        def may_enter(ahead: int) -> bool:
            need, _ = self.terms(head, self._batch.tokens(clock + ahead))
            return self.admits(self.budget(clock, free, queued, ahead), need)

        if not may_enter(bound):
            return bound
        return 1 + bisect_left(range(1, bound), True, key=may_enter)

    def note_retraction(self, clock: int) -> None:
        """``NewTokenRatio.after_retraction`` of those that stay, from sums: it costs O(1)."""
        steps = self._config.retract_decode_steps
        have = self._batch.generated(clock) + steps * self._batch.size
        self._ratio = NewTokenRatio(min(1.0, have / (self._batch.asked + 1)))

    def note_forwards(self, forwards: int) -> None:
        """So many forwards retracted nothing."""
        self._ratio = self._ratio.after(forwards)
