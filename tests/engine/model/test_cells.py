"""The cells' own rules: prompts of the right length, prefill-only ends, samplers, watching."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import Forced, Greedy, ModelCells, Seeded, ShardedModel
from kvlab.engine.workload import Request
from kvlab.errors import BackupError, PoolError, StudyError, WorkloadError
from kvlab.index import DcpLayout, WidenedSlots
from tests.engine.model.tiny import VOCABULARY, library_logits, model, prompt

CONFIG = NodeConfig(DcpLayout(2, 2, 30), reserved_decode_tokens=2)


def cells_for(requests: tuple[Request, ...], **rules: object) -> ModelCells:
    sharded = ShardedModel(model("kimi-moe"), CONFIG.layout, requests=len(requests))
    prompts = {r.rid: prompt(r.rid, r.prompt_tokens).tolist() for r in requests}
    return ModelCells(sharded, prompts, **rules)  # type: ignore[arg-type]


def test_greedy_output_is_the_librarys_own_greedy_output() -> None:
    requests = (Request(0, 0.0, 7, 12), Request(1, 0.0, 3, 9))
    cells = cells_for(requests)
    StepNode(CONFIG, cells).run(requests)
    for request in requests:
        stream = cells.streams[request.rid]
        tokens = torch.tensor(stream.tokens[:-1])
        logits = library_logits("kimi-moe", tokens, request.prompt_tokens)
        logprobs = torch.log_softmax(logits[request.prompt_tokens - 1 :], dim=-1)
        assert stream.output == logprobs.argmax(dim=-1).tolist()
        assert stream.logprobs == pytest.approx(logprobs.amax(dim=-1).tolist(), abs=1e-5)


@pytest.mark.parametrize("handover", [False, True])
def test_a_request_of_one_token_ends_at_its_prefill_and_has_that_token(handover: bool) -> None:
    requests = (Request(0, 0.0, 6, 1), Request(1, 0.0, 6, 3))
    cells = cells_for(requests, handover=handover)
    StepNode(CONFIG, cells).run(requests)
    want = library_logits("kimi-moe", prompt(0, 6), 6)[-1].argmax()
    assert cells.streams[0].output == [int(want)]
    assert len(cells.streams[1].output) == 3


def test_a_seeded_stream_depends_on_its_seed_and_not_on_its_company() -> None:
    both = (Request(0, 0.0, 6, 10), Request(1, 0.0, 9, 10))
    outputs = {}
    for name, requests, seed in (("both", both, 1), ("alone", both[:1], 1), ("other", both, 2)):
        cells = cells_for(requests, sampler=Seeded(seed, temperature=2.0))
        StepNode(CONFIG, cells).run(requests)
        outputs[name] = cells.streams[0].output
    assert outputs["both"] == outputs["alone"] != outputs["other"]


def test_seeded_draws_follow_the_distribution() -> None:
    logprobs = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    sampler = Seeded(4)
    drawn = torch.tensor([sampler.pick(1, p, logprobs) for p in range(3000)])
    shares = torch.bincount(drawn, minlength=3) / 3000
    assert (shares - logprobs.exp()).abs().max() < 0.04
    cold = Seeded(4, temperature=0.01)
    assert {cold.pick(1, p, logprobs) for p in range(50)} == {Greedy().pick(1, 0, logprobs)} == {0}


def test_a_forced_stream_is_followed_and_its_logprobs_are_the_models() -> None:
    requests = (Request(0, 0.0, 5, 8),)
    forced = prompt(0, 5).tolist() + prompt(77, 8).tolist()
    seen: list[tuple[int, int, Tensor]] = []
    cells = cells_for(
        requests,
        sampler=Forced({0: forced}),
        watch=lambda rid, position, logprobs: seen.append((rid, position, logprobs)),
    )
    StepNode(CONFIG, cells).run(requests)
    assert cells.streams[0].tokens == forced
    assert [(rid, position) for rid, position, _ in seen] == [(0, p) for p in range(5, 13)]
    assert all(tuple(x.shape) == (VOCABULARY,) for _, _, x in seen)
    logits = library_logits("kimi-moe", torch.tensor(forced[:-1]), 5)[4:]
    want = torch.log_softmax(logits, dim=-1)
    torch.testing.assert_close(torch.stack([x for _, _, x in seen]), want, atol=1e-5, rtol=0)


def test_samplers_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(StudyError, match=r"temperature must be finite and above 0: got 0\.0"):
        Seeded(1, 0.0)
    with pytest.raises(StudyError, match="request 3 has 2 tokens, position 2 was asked"):
        Forced({3: [1, 2]}).pick(3, 2, torch.zeros(4))


def test_a_prompt_of_another_length_than_the_scheduler_counts_with_is_refused() -> None:
    cells = cells_for((Request(0, 0.0, 6, 4),))
    with pytest.raises(WorkloadError, match=r"request 0 has 6 tokens here \(6 of them prompt\)"):
        StepNode(CONFIG, cells).run((Request(0, 0.0, 7, 4),))


def test_more_running_requests_than_state_slots_are_refused() -> None:
    requests = (Request(0, 0.0, 6, 4), Request(1, 0.0, 6, 4))
    sharded = ShardedModel(model("kimi-moe"), CONFIG.layout, requests=1)
    cells = ModelCells(sharded, {r.rid: prompt(0, 6).tolist() for r in requests})
    with pytest.raises(PoolError, match="every running request needs a state slot: all 1 are"):
        StepNode(CONFIG, cells).run(requests)


def test_slots_that_scheduler_and_cells_do_not_share_are_named() -> None:
    cells = cells_for((Request(0, 0.0, 6, 4),))
    ids = torch.arange(4, 10)
    cells.write(torch.zeros(6, dtype=torch.int64), torch.arange(6), ids)
    cells.check(0, WidenedSlots(ids))
    with pytest.raises(PoolError, match="must name the same slots: request 0 has 5 there, 6 here"):
        cells.check(0, WidenedSlots(ids[:5]))


def test_a_backup_that_the_host_declines_aborts_one_request_and_changes_no_other() -> None:
    requests = tuple(Request(i, 0.0, 6, 10) for i in range(3))
    config = replace(CONFIG, force_retract_interval=4)
    sharded = ShardedModel(model("kimi-moe"), config.layout, requests=3, host_bytes=0)
    prompts = {r.rid: prompt(r.rid, 6).tolist() for r in requests}
    cells = ModelCells(sharded, prompts, poison=float("nan"))
    result = StepNode(config, cells, check_every_step=True).run(requests)
    assert result.counters.declined_backups > 0
    calm = cells_for(requests)
    StepNode(CONFIG, calm).run(requests)
    for outcome in result.outcomes:
        n = outcome.generated
        assert cells.streams[outcome.rid].output == calm.streams[outcome.rid].output[:n]
    assert cells.audit() == []


def test_a_restore_that_fails_gives_its_state_slot_back() -> None:
    cells = cells_for((Request(0, 0.0, 6, 4),))
    ids = torch.arange(4, 10)
    cells.write(torch.zeros(6, dtype=torch.int64), torch.arange(6), ids)
    backups = cells.back_up(0, WidenedSlots(ids))
    cells.release(0, WidenedSlots(ids))
    with pytest.raises(BackupError, match="position count is 6"):
        cells.restore(0, backups, WidenedSlots(ids[:5]))
    assert cells.sharded.pools.states is not None
    assert len(cells.sharded.pools.states._free) == 1
    cells.restore(0, backups, WidenedSlots(ids + 4))
