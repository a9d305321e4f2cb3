"""``ModelCells``: what the scheduler moves is the KV and the state of a real model.

The scheduler decides when a request prefills, decodes, gives its memory back and returns; the cells
run the model at just these moments and keep each request's tokens and their logprobs. So the same
retraction code is under test as with fingerprints, and what it does is seen in the tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvlab.engine.model.handover import Prefill, Prefilled, prefill_apart
from kvlab.engine.model.pools import Snapshot, take_snapshot
from kvlab.engine.model.runner import ShardedModel
from kvlab.engine.model.sampling import Greedy, Sampler
from kvlab.errors import PoolError, StudyError, WorkloadError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_index, require_int
from kvlab.memory import KvBackup

# Called for every sampled token: request, its position, logprobs float32 (vocabulary,) in nats.
Watch = Callable[[int, int, Tensor], None]


@dataclass(slots=True)
class Stream:
    """A request's tokens, its prompt first, and the logprob (nats) of each one that was picked."""

    tokens: list[int]
    prompt_tokens: int
    logprobs: list[float] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """The tokens that were picked."""
        return self.tokens[self.prompt_tokens :]


@dataclass(slots=True)
class _Held:
    """Where a running request lies: slots of all its cached positions, and its state slot."""

    ids: Tensor
    state: int | None


class ModelCells:
    """The contract ``CacheBackend`` over a ``ShardedModel``.

    Args:
        sharded: the model over the decode node's pools.
        prompts: the prompt of each request, tokens by rid.
        sampler: how tokens are picked.
        handover: prefill on a DCP 1 node of its own and hand rows and state over (PD); else
            prefill on the decode node's ranks.
        chunk_tokens: new tokens of one prefill call; None: the whole prompt.
        poison: overwrite freed rows with this value (NaN shows any read of them); None leaves them.
        verify: compare a restored request's rows and state with those that it gave up, bit by bit.
        watch: called with every token's logprobs.
        prefilled: prefills of these prompts that were run before, and where new ones are kept;
            None runs each prefill anew. Same bits either way.

    Errors: StudyError for ``prefilled`` without ``handover``; LayoutError for a chunk below 1.
    """

    def __init__(
        self,
        sharded: ShardedModel,
        prompts: Mapping[int, Sequence[int]],
        *,
        sampler: Sampler | None = None,
        handover: bool = False,
        chunk_tokens: int | None = None,
        poison: float | None = None,
        verify: bool = False,
        watch: Watch | None = None,
        prefilled: Prefilled | None = None,
    ) -> None:
        if prefilled is not None and not handover:
            raise StudyError("kept prefills are handed over from a node at DCP 1: handover=True")
        if chunk_tokens is not None:
            require_int("chunk_tokens", chunk_tokens, 1, "new tokens of one prefill call")
        self.sharded, self.prompts = sharded, prompts
        self.sampler: Sampler = sampler if sampler is not None else Greedy()
        self.handover, self.chunk_tokens, self.poison = handover, chunk_tokens, poison
        self.verify, self.watch, self.prefilled = verify, watch, prefilled
        self.streams: dict[int, Stream] = {}
        self._held: dict[int, _Held] = {}
        self._given_up: dict[int, Snapshot] = {}

    @property
    def layout(self) -> DcpLayout:
        """The layout of the model's pools."""
        return self.sharded.layout

    def write(self, rids: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Prefill a request that holds nothing, or decode one token of each that runs.

        Errors: WorkloadError for a prompt that is missing, or has another length than the scheduler
        counts with; IndexSpaceError for what is no id.
        """
        order = rids.tolist()
        if order[0] not in self._held:
            self._prefill(order[0], WidenedSlots(slots))
            return
        running = [self._holding(rid) for rid in order]
        for rid, held, position, slot in zip(
            order, running, positions.tolist(), slots, strict=True
        ):
            self._require_length(rid, position + 1)
            held.ids = torch.cat([held.ids, slot[None]])
        logits = self.sharded.decode(
            [self.streams[rid].tokens[-1] for rid in order],
            [WidenedSlots(held.ids) for held in running],
            [held.state for held in running],
        )
        for rid, line in zip(order, logits, strict=True):
            self._pick(rid, line)

    def prefill_only(self, rid: int, tokens: int) -> None:
        """The last token comes from a prefill whose rows nobody reads again: on the prefill node
        where there is a hand-over, else on as many ranks as decode."""
        self._require_length(rid, tokens)
        dcp_size = 1 if self.handover else self.sharded.layout.dcp_size
        self._pick(rid, self._prefill_apart(rid, dcp_size).logits[0])

    def back_up(self, rid: int, slots: WidenedSlots) -> list[KvBackup]:
        """Rows of all ranks and the state, as they are before the newest token runs.

        Errors: HostFullError when the host has no room. A request that is then released and written
        again is prefilled over all its tokens, the newest too.
        """
        state = self._holding(rid).state
        backups = self.sharded.pools.back_up(slots, state)
        if self.verify:
            self._given_up[rid] = take_snapshot(self.sharded.pools, slots, state)
        return backups

    def restore(self, rid: int, backups: list[KvBackup], slots: WidenedSlots) -> None:
        """Rows into the new slots, state into a new state slot."""
        state = self.sharded.pools.alloc_state()
        try:
            self.sharded.pools.restore(backups, slots, state)
        except BaseException:
            self.sharded.pools.free_state(state)
            raise
        self._held[rid] = _Held(slots.ids.clone(), state)

    def release(self, rid: int, slots: WidenedSlots) -> None:
        """The request leaves the batch: its state slot is free, its rows are no one's."""
        self.sharded.pools.free_state(self._holding(rid).state)
        del self._held[rid]
        if self.poison is not None:
            self.sharded.pools.fill(slots, self.poison)

    def check(self, rid: int, slots: WidenedSlots) -> None:
        """The request lies where the scheduler says, and (``verify``) came back as it left.

        Errors: PoolError with what differs.
        """
        held = self._holding(rid)
        if not torch.equal(held.ids, slots.ids):
            raise PoolError(f"scheduler and cells must name the same slots of request {rid}")
        before = self._given_up.pop(rid, None)
        if before is not None:
            now = take_snapshot(self.sharded.pools, slots, held.state)
            before.require_equal(now, f"request {rid}")

    def audit(self) -> list[str]:
        """The broken laws of the pools."""
        return self.sharded.pools.audit()

    def _prefill(self, rid: int, slots: WidenedSlots) -> None:
        self._require_length(rid, len(slots))
        state = self.sharded.pools.alloc_state()
        self._held[rid] = _Held(slots.ids.clone(), state)
        if self.handover:
            done = self._prefill_apart(rid, 1)
            done.hand_over(self.sharded.pools, slots, state)
            logits = done.logits
        else:
            tokens = torch.tensor(self.streams[rid].tokens)
            logits = self.sharded.prefill(tokens, slots, state, chunk_tokens=self.chunk_tokens)
        self._pick(rid, logits[0])

    def _prefill_apart(self, rid: int, dcp_size: int) -> Prefill:
        """A prefill of all tokens on pools of its own. A prompt's may have been kept; that of a
        request which is recomputed is longer than its prompt, and is not."""
        stream, chunk = self.streams[rid], self.chunk_tokens
        if self.prefilled is not None and not stream.output:
            return self.prefilled.get(self.sharded, rid, stream.tokens, chunk)
        return prefill_apart(self.sharded, stream.tokens, dcp_size=dcp_size, chunk_tokens=chunk)

    def _require_length(self, rid: int, tokens: int) -> None:
        if rid not in self.streams:
            if rid not in self.prompts:
                raise WorkloadError(f"each request has a prompt, by rid: request {rid} has none")
            prompt = [require_index(f"a token of prompt {rid}", t) for t in self.prompts[rid]]
            self.streams[rid] = Stream(prompt, len(prompt))
        has = len(self.streams[rid].tokens)
        if has != tokens:
            raise WorkloadError(
                f"a request's tokens and the scheduler's count must agree: request {rid} has "
                f"{has} tokens here ({self.streams[rid].prompt_tokens} of them prompt), the "
                f"scheduler counts {tokens}; make its prompt as long as prompt_tokens says"
            )

    def _holding(self, rid: int) -> _Held:
        if rid not in self._held:
            raise PoolError(f"a request must run here: request {rid} holds no rows")
        return self._held[rid]

    def _pick(self, rid: int, logits: Tensor) -> None:
        stream = self.streams[rid]
        logprobs = torch.log_softmax(logits.float(), dim=-1)
        if self.watch is not None:
            self.watch(rid, len(stream.tokens), logprobs)
        token = self.sampler.pick(rid, len(stream.tokens), logprobs)
        if not 0 <= token < len(logprobs):
            raise StudyError(
                f"a sampler picks an id of the vocabulary, in [0, {len(logprobs)}): got {token} "
                f"from {type(self.sampler).__name__} for request {rid} at position "
                f"{len(stream.tokens)}; record the reference with this model"
            )
        stream.tokens.append(token)
        stream.logprobs.append(float(logprobs[token]))
