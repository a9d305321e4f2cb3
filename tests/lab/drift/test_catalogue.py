"""Defects, conditions, prompts and nodes: the catalog holds together."""

import json
from collections import Counter
from pathlib import Path

import pytest

from kvlab.engine import CountingNode, NodeConfig
from kvlab.errors import StudyError, WorkloadError
from kvlab.lab.drift import (
    CONDITIONS,
    DEFECTS,
    DTYPES,
    NAMES,
    Point,
    Prompts,
    condition,
    default_prompts,
    defect,
    read_prompts,
)
from kvlab.lab.drift.faults import CELLS, MERGES
from kvlab.lab.drift.prompts import RUNNING
from kvlab.lab.drift.run import PAGE_SIZE, node_config
from tests.lab.drift.tiny_study import prompts_file


def node(name: str, dcp_size: int, prompts: Prompts | None = None) -> NodeConfig:
    return node_config(Point(condition(name), dcp_size, "float32"), prompts or default_prompts())


def counts(prompts: Prompts, name: str, dcp_size: int) -> Counter[str]:
    run = CountingNode(node(name, dcp_size, prompts)).run(prompts.workload, record=True)
    return Counter(event.kind for event in run.events)


def test_every_defect_has_its_code_its_condition_and_says_where_it_was_reported() -> None:
    assert {d.name for d in DEFECTS} == CELLS.keys() | MERGES.keys()
    for known in DEFECTS:
        assert f"defect:{known.name}" in NAMES
        assert (
            known.source.startswith("sglang#") or known.hypothetical or "by reading" in known.source
        )
        assert known.what and known.tell_apart and set(known.dtypes) <= set(DTYPES)
    assert len({d.title for d in DEFECTS}) == len(DEFECTS)
    with pytest.raises(KeyError):
        defect("none")


def test_every_condition_differs_from_its_right_twin_by_its_defect_alone() -> None:
    for known in CONDITIONS:
        twin = condition(known.fixed)
        assert (twin.defect, twin.schedule) == (None, known.schedule)
        assert (known.defect is None) == (twin == known)
    assert condition("forced_before_fix").runs_as == condition("defect:widened_as_rows").runs_as
    with pytest.raises(StudyError, match=r"a condition is one of no_retraction, .*: got 'fixed'"):
        condition("fixed")


def test_the_stored_prompts_end_where_the_model_must_recall() -> None:
    found = default_prompts()
    assert len(found.tokens) == 48 and found.positions <= 512
    for tokens, answer in zip(found.tokens, found.answers, strict=True):
        text = bytes(tokens).decode("ascii")
        first, last = text.split("\n")[0], text.rsplit("\nget", 1)[1]
        pairs = dict(pair.split("=") for pair in first.removeprefix("set ").split())
        asked = last.rsplit(" ", 1)[1]
        assert asked.endswith("=") and pairs[asked[:-1]] == answer.decode()
        assert all(pairs[p[:2]] == p[3:] for p in last.split()[:-1])


def test_a_head_of_the_prompts_keeps_them_and_cuts_outputs() -> None:
    found = default_prompts()
    cut = found.head(3, 5)
    assert cut.tokens == found.tokens[:3]
    assert [r.output_tokens for r in cut.workload.requests] == [5, 5, 5]
    assert found.head(48).workload.digest == found.workload.digest
    with pytest.raises(WorkloadError, match=r"the study has 48 requests: got requests=49"):
        found.head(49)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", r"'p\.jsonl', line 1: JSONDecodeError"),
        (b'{"prompt": "a"}', "line 1: KeyError"),
        (b'{"prompt": "", "answer": "", "output_tokens": 3}', "a prompt is not empty"),
        (b'{"prompt": "a", "answer": "", "output_tokens": 1}', "at least 2"),
        (b'{"prompt": "a", "answer": "", "output_tokens": true}', "an int"),
        (b'{"prompt": "\\u00e9", "answer": "", "output_tokens": 3}', "UnicodeEncodeError"),
        (b'{"prompt": "abc", "answer": "a", "output_tokens": 1000000}', r"3 \+ 1000000 positions"),
        (b'{"prompt": "a", "prompt": "b", "answer": "", "output_tokens": 3}', "stands twice"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"", "it has 0 lines"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used_is_named_with_its_reason(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_bytes(content)
    with pytest.raises(WorkloadError, match=sentence):
        read_prompts(tmp_path / "p.jsonl")
    with pytest.raises(WorkloadError, match=r"'none', line 0: .* No such file or directory"):
        read_prompts(tmp_path / "none")
    good = prompts_file(tmp_path / "good.jsonl")
    texts = [json.loads(line)["prompt"] for line in good.read_text().splitlines()]
    assert [bytes(tokens).decode() for tokens in read_prompts(good).tokens] == texts
    good.write_text(good.read_text() + "{\n")
    with pytest.raises(WorkloadError, match="line 7"):
        read_prompts(good)


@pytest.mark.parametrize("dcp_size", [1, 2, 4, 8])
def test_in_the_silent_regime_every_id_that_can_be_out_is_a_row(dcp_size: int) -> None:
    prompts = default_prompts()
    found = node("forced_before_fix", dcp_size).layout
    used = RUNNING * found.pages_for(prompts.positions)
    assert (used + 1) * found.widened_page_size <= found.rows_per_rank
    assert found.page_size == PAGE_SIZE


def test_only_the_natural_schedule_is_short() -> None:
    for name in ("no_retraction", "forced_fixed", "natural"):
        config = node(name, 4)
        short = config.layout.capacity_tokens < RUNNING * default_prompts().positions
        assert short == (name == "natural")
        assert (config.force_retract_interval == 3) == (name == "forced_fixed")
    assert counts(default_prompts(), "no_retraction", 4)["retract"] == 0


@pytest.mark.parametrize("dcp_size", [1, 2, 4, 8])
def test_short_memory_retracts_ten_requests_or_more_and_aborts_none(dcp_size: int) -> None:
    found = counts(default_prompts(), "natural", dcp_size)
    assert found["retract"] >= 10
    assert found["resume"] == found["retract"]
    assert (found["abort"], found["finish"]) == (0, 48)
    quick = counts(default_prompts().head(12, 24), "natural", dcp_size)
    assert quick["retract"] >= 1 or dcp_size not in (1, 4)
    assert (quick["abort"], quick["finish"]) == (0, 12)
