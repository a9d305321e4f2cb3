"""What a node's rules and a run's result show of themselves is true, short, and well formed."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine import CountingNode, NodeConfig, RunResult, StepNode
from kvlab.engine.workload import Request
from kvlab.index import DcpLayout
from tests.index.cells import Table, facts, numbers, read

TIGHT = NodeConfig(DcpLayout(2, 4, 12), reserved_decode_tokens=8)


def crowd(n: int, output: int = 60) -> list[Request]:
    return [Request(i, 0.0, 10 + i, output) for i in range(n)]


def tables(result: RunResult) -> list[Table]:
    return read(result._repr_html_())


@given(st.integers(1, 40), st.integers(2, 70), st.booleans())
def test_a_result_shows_its_counters_and_how_often_each_request_was_retracted(
    n: int, output: int, record: bool
) -> None:
    result = CountingNode(TIGHT).run(crowd(n, output), record=record)
    told, strip, *_ = tables(result)
    shown = facts(told)
    zero = shown.pop("zero", "").split(", ")
    counted = {name: numbers(text)[0] for name, text in shown.items()}
    assert counted | {name: 0 for name in zero if name} == result.as_dict()
    outcomes = {o.rid: o for o in result.outcomes}
    columns = strip.columns()
    for column in columns:
        outcome = outcomes[int(column["request"])]
        assert int(column["retractions"]) == outcome.retractions
        assert column["ended, at step"] == f"{outcome.status} {outcome.end_step}"
    most = sorted((o.retractions for o in result.outcomes), reverse=True)
    assert [int(column["retractions"]) for column in columns] == most[: len(columns)]
    hidden = sum(numbers(x)[0] for x in strip.texts()["request"] if x.startswith("..."))
    assert len(columns) + hidden == n


@given(st.integers(2, 40))
def test_a_recorded_result_tells_what_happened_to_those_retracted_most(n: int) -> None:
    result = CountingNode(TIGHT).run(crowd(n), record=True)
    _, _, *stories = tables(result)
    assert bool(stories) == bool(result.counters.retracted_requests)
    for story in stories:
        for rid, cells in list(story.texts().items())[1:]:
            want = [f"{e.kind} {e.step}" for e in result.events if e.rid == int(rid)]
            shown = [text for text in cells if text and not text.startswith("...")]
            assert shown == want[: len(shown)]
            hidden = sum(numbers(text)[0] for text in cells if text.startswith("..."))
            assert len(shown) + hidden == len(want)
        assert [c.text for row in story.rows for c in row if "background" in c.style] == [
            c.text for row in story.rows for c in row if c.text.startswith(("retract", "resume"))
        ]


def test_the_repr_of_a_result_is_one_line_however_long_the_run() -> None:
    result = CountingNode(TIGHT).run(crowd(40), record=True)
    c = result.counters
    assert repr(result) == (
        f"RunResult(40 requests, {c.finished} finished, {c.aborted} aborted; "
        f"{c.retracted_requests} retractions, {c.resumed_requests} resumed; last step "
        f"{c.last_step}; {len(result.events)} events)"
    )
    assert c.retracted_requests > 0


@given(st.none() | st.integers(1, 9), st.integers(0, 999), st.sampled_from(("abort", "recompute")))
def test_a_config_shows_every_rule_and_which_are_the_defaults(
    concurrency: int | None, reserved: int, full: str
) -> None:
    config = NodeConfig(
        DcpLayout(2, 4, 12),
        concurrency=concurrency,
        reserved_decode_tokens=reserved,
        host_full=full,  # type: ignore[arg-type]
    )
    (told,) = read(config._repr_html_())
    shown = facts(told)
    assert list(shown) == [f.name for f in fields(NodeConfig)]
    for f in fields(NodeConfig):
        value = getattr(config, f.name)
        text = "none" if value is None else str(value)
        assert shown[f.name] == text + (" (default)" if value == f.default else "")


@given(st.none() | st.integers(1, 9), st.floats(0.001, 1))
def test_the_repr_of_a_config_makes_the_same_config(
    concurrency: int | None, step_time: float
) -> None:
    config = NodeConfig(DcpLayout(3, 2, 5), concurrency=concurrency, step_time_s=step_time)
    assert eval(repr(config)) == config


def test_nodes_show_the_rules_that_they_follow() -> None:
    node = StepNode(TIGHT)
    assert CountingNode(TIGHT)._repr_html_() == node._repr_html_() == TIGHT._repr_html_()
    assert repr(CountingNode(TIGHT)) == f"CountingNode({TIGHT!r})"
    assert repr(node) == f"StepNode({TIGHT!r})"
