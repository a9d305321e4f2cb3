"""A transformers ``Cache`` over the pools: rows of MLA layers to c ranks, state of KDA layers.

One object a step. An MLA layer hands over the new compressed rows and takes back what it is to
expand: all rows of all ranks (expanded form), or a single one that nobody reads (absorbed form,
where the attention function reads the pools itself). A KDA layer takes its state out of the
``StatePool`` and puts it back; a request without history has a state of zeros, as the layer itself
would assume.

Source: what ``transformers`` 5.24 asks of a cache in ``models/kimi_linear`` and
``models/deepseek_v3``.
"""

import torch
from torch import Tensor
from transformers import Cache

from kvlab.engine.model.step import STEP, Step
from kvlab.errors import PoolError
from kvlab.memory import StatePool


class StepCache(Cache):
    """The cache of one step; ``dtype`` is what the model computes in."""

    def __init__(self, step: Step, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self.step, self.dtype = step, dtype
        # Windows that were handed out. The layer's decode path changes its window in place and
        # says nothing; they are stored with the matrix, which every path hands over last.
        self._windows: dict[int, Tensor] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store the new rows; ``key_states`` is the latent part, ``value_states`` the rope part.

        Errors: PoolError when the model call did not carry this cache's own step.
        """
        carried = kwargs.get("kwargs")
        given: object = carried.get(STEP) if isinstance(carried, dict) else None
        if given is not self.step:
            raise PoolError(
                f"a model call carries its step twice, in the cache and as {STEP}=...: layer "
                f"{layer_idx} got another one, or none; call the model through ShardedModel"
            )
        self.step.write(layer_idx, key_states, value_states)
        if self.step.form == "expanded":
            return self.step.read_all(layer_idx, key_states.dtype)
        # expand_kv cannot take no rows at all (a view with -1), so it gets one.
        return key_states[:1, :, :1], value_states[:1, :, :1]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The convolution windows ``(B, channels, kernel)``, a copy."""
        states, slots, layer = self._state(layer_idx)
        window = states.conv[layer, slots].to(self.dtype)
        self._windows[layer_idx] = window
        return window

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Old window and new inputs side by side ``(B, channels, kernel + T)``; the last kernel
        columns are the new window."""
        both = torch.cat([self._windows[layer_idx], conv_states], dim=-1)
        self._windows[layer_idx] = both[..., -self._windows[layer_idx].shape[-1] :]
        return both

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        """The matrices ``(B, heads, d, d)``, float32, a copy."""
        states, slots, layer = self._state(layer_idx)
        return states.temporal[layer, slots]

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> Tensor:
        """Store the matrices, and with them the windows of the layer."""
        states, slots, layer = self._state(layer_idx)
        states.temporal[layer, slots] = recurrent_states.to(states.temporal.dtype)
        states.conv[layer, slots] = self._windows.pop(layer_idx).to(states.conv.dtype)
        return recurrent_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions of the longest request before this step."""
        return int(self.step.plan.lens.max()) - self.step.plan.new_tokens

    def _state(self, layer_idx: int) -> tuple[StatePool, Tensor, int]:
        states, slots = self.step.pools.states, self.step.plan.state_slots
        if states is None or slots is None:
            raise PoolError(
                f"layer {layer_idx} keeps a state: the step names "
                f"{'no state slots' if slots is None else 'slots of a pool that is not there'}; "
                f"pass state_slots to plan_step"
            )
        return states, slots, self.step.pools.linear[layer_idx]
