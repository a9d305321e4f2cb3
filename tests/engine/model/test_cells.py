"""The cells' own rules: greedy, seeded and forced tokens are the library's, whoever is beside."""

import pytest
import torch
from torch import Tensor

from kvlab.engine import NodeConfig, StepNode
from kvlab.engine.model import Forced, Greedy, ModelCells, Seeded, ShardedModel
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from tests.engine.model.tiny import VOCABULARY, library_logits, model, prompt

CONFIG = NodeConfig(DcpLayout(2, 2, 30), reserved_decode_tokens=2)
TWO = (Request(0, 0.0, 7, 12), Request(1, 0.0, 3, 9))


def served(requests: tuple[Request, ...], **rules: object) -> ModelCells:
    sharded = ShardedModel(model("kimi-moe"), CONFIG.layout, requests=len(requests))
    prompts = {r.rid: prompt(r.rid, r.prompt_tokens).tolist() for r in requests}
    cells = ModelCells(sharded, prompts, **rules)  # type: ignore[arg-type]
    StepNode(CONFIG, cells).run(requests)
    return cells


def test_greedy_output_is_the_librarys_own_greedy_output() -> None:
    cells = served(TWO)
    for request in TWO:
        stream = cells.streams[request.rid]
        tokens = torch.tensor(stream.tokens[:-1])
        logits = library_logits("kimi-moe", tokens, request.prompt_tokens)
        logprobs = torch.log_softmax(logits[request.prompt_tokens - 1 :], dim=-1)
        assert stream.output == logprobs.argmax(dim=-1).tolist()
        assert stream.logprobs == pytest.approx(logprobs.amax(dim=-1).tolist(), abs=1e-5)


def test_a_seeded_stream_depends_on_its_seed_and_not_on_its_company() -> None:
    both, alone, other = (
        served(requests, sampler=Seeded(seed, temperature=2.0)).streams[0].output
        for requests, seed in ((TWO, 1), (TWO[:1], 1), (TWO, 2))
    )
    assert both == alone != other


def test_seeded_draws_follow_the_distribution() -> None:
    logprobs = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    sampler = Seeded(4)
    drawn = torch.tensor([sampler.pick(1, p, logprobs) for p in range(3000)])
    shares = torch.bincount(drawn, minlength=3) / 3000
    assert (shares - logprobs.exp()).abs().max() < 0.04
    cold = Seeded(4, temperature=0.01)
    assert {cold.pick(1, p, logprobs) for p in range(50)} == {Greedy().pick(1, 0, logprobs)} == {0}


def test_a_forced_stream_is_followed_and_its_logprobs_are_the_models() -> None:
    forced = prompt(0, 7).tolist() + prompt(77, 12).tolist()
    seen: list[tuple[int, int, Tensor]] = []
    cells = served(TWO[:1], sampler=Forced({0: forced}), watch=lambda *given: seen.append(given))
    assert cells.streams[0].tokens == forced
    assert [(rid, position) for rid, position, _ in seen] == [(0, p) for p in range(7, 19)]
    assert all(tuple(x.shape) == (VOCABULARY,) for _, _, x in seen)
    logits = library_logits("kimi-moe", torch.tensor(forced[:-1]), 7)[6:]
    want = torch.log_softmax(logits, dim=-1)
    torch.testing.assert_close(torch.stack([x for _, _, x in seen]), want, atol=1e-5, rtol=0)
