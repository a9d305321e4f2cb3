"""Why a recomputed request drifts by more than the noise: its recurrent state, not its rows.

A request that is recomputed is prefilled over prompt and output at once. Its rows and its state
are replaced one at a time by those that the prompt's prefill and single steps make, on the shipped
checkpoint, whose rounding is the one that the recorded study shows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from kvlab.engine.model import ShardedModel
from kvlab.engine.model import backend as cells_module
from kvlab.engine.model.handover import Prefill, prefill_apart
from kvlab.index import WidenedSlots
from kvlab.lab.drift import MARGIN, DriftStudy, Point, condition, default_prompts
from kvlab.lab.drift.run import forced_run, reference_run
from kvlab.lab.keep import Values
from kvlab.memory import PagedTokenToKVPoolAllocator
from kvlab.memory.published import data_path

Kept = Literal["rows", "state"]
PROMPTS = default_prompts().head(6, 24)


@pytest.fixture(scope="module")
def study() -> Iterator[DriftStudy]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder: Path = data_path("checkpoints", "tiny-kimi-linear", "config.json").parent
    yield DriftStudy(folder, PROMPTS)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(study: DriftStudy) -> Values:
    return reference_run(study, "float32", "forced")


def prefill_keeping(kept: Kept) -> Any:
    """A prefill of all tokens at once of which ``kept`` is kept; the rest is made as decoding
    makes it: the prompt at once, then a step for each token of the output."""

    def prefill(
        sharded: ShardedModel, tokens: list[int], *, dcp_size: int, **given: Any
    ) -> Prefill:
        whole = prefill_apart(sharded, tokens, dcp_size=dcp_size, **given)
        prompt = next(n for n in map(len, PROMPTS.tokens) if tuple(tokens[:n]) in PROMPTS.tokens)
        if prompt == len(tokens):
            return whole
        layout = whole.pools.ranks[0].layout
        node = sharded.like(layout, requests=1)
        ids = PagedTokenToKVPoolAllocator(layout).alloc_extend(0, len(tokens))
        assert ids is not None
        state = node.pools.alloc_state()
        asked = torch.tensor(tokens)
        node.prefill(asked[:prompt], WidenedSlots(ids[:prompt]), state)
        node.prefill(asked, WidenedSlots(ids), state, chunk_tokens=1, start=prompt)
        if "rows" not in kept:
            for mine, stepped in zip(whole.pools.ranks, node.pools.ranks, strict=True):
                mine.buffer.copy_(stepped.buffer)
        if "state" not in kept:
            mine_, stepped_ = whole.pools.states, node.pools.states
            assert mine_ is not None and stepped_ is not None
            mine_.conv.copy_(stepped_.conv)
            mine_.temporal.copy_(stepped_.temporal)
        return whole

    return prefill


def drift(study: DriftStudy, reference: Values, name: str) -> float:
    run = forced_run(study, Point(condition(name), 1, "float32"), reference)
    return float(np.abs(run["logprob"] - reference["logprob"]).max())


def test_a_recomputed_request_leaves_the_floor_by_its_state_alone(
    study: DriftStudy, reference: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = drift(study, reference, "no_retraction")

    def recomputed(kept: Kept) -> float:
        monkeypatch.setattr(cells_module, "prefill_apart", prefill_keeping(kept))
        return drift(study, reference, "recompute")

    assert recomputed("state") > MARGIN * floor
    assert recomputed("rows") <= MARGIN * floor
