"""The node of a condition: how often somebody leaves it. Counted by events, without a model."""

from collections import Counter

import pytest

from kvlab.engine import CountingNode
from kvlab.lab.drift.conditions import condition
from kvlab.lab.drift.node import node_config
from kvlab.lab.drift.prompts import Prompts, default_prompts

RUNNING = 20


def counts(prompts: Prompts, name: str, dcp_size: int) -> Counter[str]:
    config = node_config(condition(name), dcp_size, prompts, RUNNING)
    return Counter(e.kind for e in CountingNode(config).run(prompts.workload, record=True).events)


@pytest.mark.parametrize("dcp_size", [1, 2, 4, 8])
def test_short_memory_retracts_ten_requests_or_more_and_aborts_none(dcp_size: int) -> None:
    found = counts(default_prompts(), "natural", dcp_size)
    assert found["retract"] >= 10
    assert found["resume"] == found["retract"]
    assert (found["abort"], found["finish"]) == (0, 48)


@pytest.mark.parametrize("dcp_size", [1, 4])
def test_the_quick_study_has_a_natural_retraction_too(dcp_size: int) -> None:
    found = counts(default_prompts().head(12, 24), "natural", dcp_size)
    assert found["retract"] >= 1
    assert (found["abort"], found["finish"]) == (0, 12)


def test_where_there_is_room_nobody_leaves() -> None:
    assert counts(default_prompts(), "no_retraction", 4)["retract"] == 0
