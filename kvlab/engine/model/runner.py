"""``ShardedModel``: a transformers model whose cache lies in the pools of c ranks."""

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvlab.engine.model.attention import NAME, STEP, Form, Merge, Step, StepCache, register
from kvlab.engine.model.checkpoint import model_shape
from kvlab.engine.model.plan import plan_step, require_apart
from kvlab.engine.model.pools import ModelPools
from kvlab.errors import PoolError
from kvlab.index import DcpLayout, WidenedSlots
from kvlab.index.layout import require_index, require_int
from kvlab.ops import merge_partials


class ShardedModel:
    """Runs ``model`` over pools of its own. Its attention implementation is set to kvlab's, and
    stays so: to call the model without pools, set another, or load it twice. Slots come from an
    allocator, as in the example, or from the scheduler through ``ModelCells``.

    Args:
        model: of a type in ``MODEL_TYPES``, with weights.
        layout: the two index spaces.
        requests: how many requests may hold recurrent state at once.
        form: "absorbed" maps queries into the latent space and never expands a key, "expanded"
            lets the layer expand keys and values of every row.
        kv_dtype: of the rows; None is the model's dtype.
        batch_invariant: one request a forward, so that its numbers do not depend on who else is in
            the batch: the libraries choose kernels and the order of sums by the batch.
        host_bytes: host memory for the backups of each rank; None means no bound.
        merge, select_padding: see ``Step``.

    Errors: CapacityError for a model without a latent cache, LayoutError, PoolError for a dtype.

    >>> from kvlab.engine.model import ShardedModel, load_model
    >>> from kvlab.memory import PagedTokenToKVPoolAllocator
    >>> from kvlab.memory.published import data_path
    >>> folder = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent
    >>> layout = DcpLayout(dcp_size=4, page_size=16, num_pages=64)
    >>> sharded = ShardedModel(load_model(folder), layout, requests=8)
    >>> allocator, state = PagedTokenToKVPoolAllocator(layout), sharded.pools.alloc_state()
    >>> prompt = torch.tensor(list(b"import o"))
    >>> ids = allocator.alloc_extend(0, len(prompt))
    >>> token = int(sharded.prefill(prompt, WidenedSlots(ids), state).argmax())
    >>> ids = torch.cat([ids, allocator.alloc_decode([len(ids) + 1], [int(ids[-1])])])
    >>> logits = sharded.decode([token], [WidenedSlots(ids)], [state])
    >>> bytes([token, int(logits.argmax())])
    b's\\n'
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: DcpLayout,
        *,
        requests: int,
        form: Form = "absorbed",
        kv_dtype: torch.dtype | None = None,
        batch_invariant: bool = False,
        host_bytes: int | None = None,
        merge: Merge = merge_partials,
        select_padding: bool = True,
    ) -> None:
        shape = model_shape(model.config)
        if form not in get_args(Form):
            raise PoolError(f"a form is one of {', '.join(get_args(Form))}: got {form!r}")
        register()
        model.set_attn_implementation(NAME)
        model.train(False)
        self.model, self.form, self.batch_invariant = model, form, batch_invariant
        self.merge, self.select_padding = merge, select_padding
        self.pools = ModelPools(
            shape,
            layout,
            requests=requests,
            dtype=kv_dtype if kv_dtype is not None else model.dtype,
            device=model.device,
            host_bytes=host_bytes,
        )

    @property
    def layout(self) -> DcpLayout:
        """The layout of the pools."""
        return self.pools.layout

    def like(self, layout: DcpLayout, *, requests: int) -> "ShardedModel":
        """The same model and settings over new pools of another layout."""
        return ShardedModel(
            self.model,
            layout,
            requests=requests,
            form=self.form,
            kv_dtype=self.pools.ranks[0].dtype,
            batch_invariant=self.batch_invariant,
            merge=self.merge,
            select_padding=self.select_padding,
        )

    @torch.no_grad()
    def forward(
        self,
        tokens: Tensor,
        slots: Sequence[WidenedSlots],
        state_slots: Sequence[int | None],
        *,
        keep: int = 1,
    ) -> Tensor:
        """One call of the model: B requests, T new tokens each.

        Args:
            tokens: int64 ``(B, T)``, the new tokens.
            slots: of each request all positions from 0, the new ones last.
            state_slots: of each request; None where the model keeps no state.
            keep: logits of how many last tokens; 0: of all T.

        Returns logits ``(B, keep or T, vocabulary)``. Errors: PoolError for ``tokens`` that are
        not (B, T) ids of the vocabulary, more to keep than T, or state slots that are missing or
        nobody's; IndexSpaceError as ``plan_step``.
        """
        self._require_tokens(tokens, (len(slots), tokens.shape[-1]))
        new = int(tokens.shape[1])
        if not 0 <= require_index("keep", keep) <= new:
            raise PoolError(f"keep counts last of {new} new tokens, 0 means all: got {keep}")
        states = self._state_slots(state_slots)
        plan = plan_step(slots, new, self.layout, state_slots=states, device=self.model.device)
        step = Step(self.pools, plan, self.form, self.merge, self.select_padding)
        output = self.model(
            input_ids=tokens.to(self.model.device),
            position_ids=plan.positions,
            cache=StepCache(step, self.model.dtype),
            use_cache=True,
            logits_to_keep=keep,
            **{STEP: step},
        )
        logits: Tensor = output.logits
        return logits

    def prefill(
        self,
        tokens: Tensor,
        slots: WidenedSlots,
        state_slot: int | None,
        *,
        chunk_tokens: int | None = None,
        start: int = 0,
        keep: int = 1,
    ) -> Tensor:
        """Run positions ``start ..`` of one request in chunks; the chunks depend on nothing else.

        Args:
            tokens: int64 ``(n,)``, the request's tokens from position 0.
            slots: of all n positions.
            chunk_tokens: new tokens of one call; None: all at once.
            start: positions that are in the cache already.
            keep: 1: logits of the last token ``(1, vocabulary)``; 0: of all, ``(n - start, ...)``.

        Errors: PoolError for a count of tokens that is not n, or a start outside; as ``forward``.
        """
        n = len(slots)
        self._require_tokens(tokens, (n,))
        if not 0 <= require_index("start", start) < n:
            raise PoolError(f"a prefill runs at least one of its {n} tokens: got start {start}")
        size = n if chunk_tokens is None else chunk_tokens
        require_int("chunk_tokens", size, 1, "new tokens of one call")
        parts = []
        for begin in range(start, n, size):
            end = min(begin + size, n)
            run = slots.chunk(0, end)
            logits = self.forward(tokens[None, begin:end], [run], [state_slot], keep=keep)
            parts.append(logits[0])
        return parts[-1] if keep else torch.cat(parts)

    def decode(
        self,
        tokens: Sequence[int],
        slots: Sequence[WidenedSlots],
        state_slots: Sequence[int | None],
    ) -> Tensor:
        """One token for each request, of any lengths: logits ``(B, vocabulary)``.

        Errors: as ``forward``.
        """
        column = torch.tensor([[require_index("token", token)] for token in tokens])
        if not self.batch_invariant:
            return self.forward(column, slots, state_slots)[:, -1]
        self._require_tokens(column, (len(slots), 1))
        require_apart(slots, 1, self._state_slots(state_slots))
        lines = [
            self.forward(token[None], [run], [state])[:, -1]
            for token, run, state in zip(column, slots, state_slots, strict=True)
        ]
        return torch.cat(lines)

    def _state_slots(self, given: Sequence[int | None]) -> list[int] | None:
        if self.pools.states is None:
            return None
        named = [slot for slot in given if slot is not None]
        if len(named) != len(given):
            raise PoolError(
                f"this model keeps a state a request: {len(given) - len(named)} of {len(given)} "
                f"requests name no state slot; call pools.alloc_state()"
            )
        for slot in named:
            self.pools.states.require_used(slot)
        return named

    def _require_tokens(self, tokens: Tensor, shape: tuple[int, ...]) -> None:
        known = int(self.model.config.vocab_size)
        if tokens.dtype not in (torch.int64, torch.int32) or tuple(tokens.shape) != shape:
            raise PoolError(
                f"tokens are int64 ids of the shape {shape}, one line a request: got "
                f"{tokens.dtype} {tuple(tokens.shape)}"
            )
        wrong = torch.nonzero((tokens < 0) | (tokens >= known))
        if len(wrong):
            bad = wrong[0].tolist()
            raise PoolError(
                f"a token is an id of the vocabulary, in [0, {known}): got "
                f"{int(tokens[tuple(bad)])} at {bad}; use the tokenizer of this model"
            )
