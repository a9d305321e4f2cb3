"""The decode benchmark refuses cases that are none, and logits that are not the library's."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvlab.errors import LayoutError, StudyError
from kvlab.lab.bench import decode
from tests.lab.bench.support import FEW_STEPS

case_of: Any = decode.DecodeCase  # bad values are what the types forbid
CASE = decode.DecodeCase(1, 1, repetitions=1)


@pytest.mark.parametrize(
    ("name", "bad"),
    [("requests", 0), ("requests", True), ("tokens", 0), ("tokens", 5.0), ("repetitions", 0),
     ("warmup", -1), ("steps", 0), ("dcp_sizes", (2, 0))],
)  # fmt: skip
def test_a_case_without_requests_tokens_or_rounds_is_refused(name: str, bad: object) -> None:
    given = {"requests": 1, "tokens": 1, "repetitions": 1, name: bad}
    with pytest.raises(LayoutError, match=f"{name.removesuffix('s')}s? must be"):
        case_of(**given)


@pytest.mark.parametrize("wrong", [0.1, float("nan"), float("inf")])
def test_logits_apart_from_the_librarys_or_none_at_all_are_not_timed(wrong: float) -> None:
    right = torch.zeros(1, 4)
    decode.require_equal(CASE, {decode.LIBRARY: right, "decode, c=2": right + 1e-6})
    with pytest.raises(StudyError, match=r"the logits of 'decode, c=2' are .* from the library's"):
        decode.require_equal(CASE, {decode.LIBRARY: right, "decode, c=2": right + wrong})


def test_a_decode_step_is_timed_at_each_dcp_size_and_says_how_many_a_second() -> None:
    rows = decode.rows_of(replace(FEW_STEPS, aimed=True, dcp_sizes=(1, 2, 8)))
    ours = ["decode, c=1", "decode, c=2", "decode, c=8", "decode, c=1, keys expanded"]
    assert [row.ours for row in rows] == ours
    assert {row.baseline for row in rows} == {decode.LIBRARY}
    ratios = [None if row.aim is None else round(row.aim.ratio, 3) for row in rows]
    assert ratios == [0.833, None, 0.4, None]
    for row in rows:
        assert row.note == f"{1 / row.seconds.median:.0f} steps/s"
        assert row.case == "2 requests of 5 to 10 tokens"


def test_an_engine_that_says_something_else_than_the_library_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = decode.Sharded.step
    monkeypatch.setattr(decode.Sharded, "step", lambda self: step(self) + 1e-3)
    with pytest.raises(StudyError, match=r"the logits of 'decode, c=1' are 0\.001 from the libra"):
        decode.rows_of(FEW_STEPS)
