"""The decode benchmark refuses cases that are none, and logits that are not the library's."""

from typing import Any

import pytest
import torch

from kvlab.errors import LayoutError, StudyError
from kvlab.lab.bench import decode

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
