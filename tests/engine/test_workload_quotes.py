"""Quoted lines: what the csv module refuses is named with its line, and JSON is left alone."""

from pathlib import Path

import pytest

from kvlab.engine.workload import load_trace
from kvlab.errors import WorkloadError

KVLAB = "arrival_s,prompt_tokens,output_tokens"
LONG = "x" * 140_000


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f'{KVLAB},note\n0,5,5,"{LONG}"\n', 2, r"field larger than field limit \(131072\)"),
        (f'{KVLAB},"{LONG}"\n0,5,5,1\n', 1, r"field larger than field limit \(131072\)"),
        (f'"arrival_s",{KVLAB[10:]}\r0,5,5\r1,5,5\r', 1, "new-line character seen"),
    ],
)
def test_a_quoted_line_that_is_no_csv_is_named_with_its_line(
    text: str, line: int, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    told = (
        rf"^t\.csv, line {line}: a quoted line is CSV that ends with LF or CR LF, with fields "
        rf"of at most 131072 characters \({reason}.*: got .{{40,100}}; save the file"
    )
    with pytest.raises(WorkloadError, match=told):
        load_trace(tmp_path / "t.csv")


def test_a_long_text_in_a_line_of_json_is_ignored(tmp_path: Path) -> None:
    text = f'{{"timestamp": 1, "note": "{LONG}", "input_length": 5, "output_length": 6}}\n'
    (tmp_path / "t.jsonl").write_text(text)
    assert load_trace(tmp_path / "t.jsonl").requests[0].prompt_tokens == 5
