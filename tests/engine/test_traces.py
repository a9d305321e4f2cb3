"""Files: what is saved is loaded, formats are told apart, and a bad line is named exactly."""

import bz2
import gzip
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.engine.workload import Request, Workload, load_trace, save_csv
from kvlab.errors import WorkloadError

ROOT = Path(__file__).resolve().parents[2]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
KVLAB = "arrival_s,prompt_tokens,output_tokens\n"
MINE = KVLAB + "0.5,6,7\n1.5,8,9\n"
LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
LENGTHS = st.integers(1, 2**30 - 1)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def public_trace(name: str) -> Path:
    """A public trace, which is not part of the project."""
    named = os.environ.get("KVLAB_TRACES")
    folders = [Path(named)] if named else [r / "shared/data/traces" for r in (ROOT, ROOT.parent)]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    pytest.skip(f"public trace {name} is not here; set KVLAB_TRACES to its folder (data/README.md)")


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.floats(0, 1e12), LENGTHS, LENGTHS), min_size=1, max_size=20),
    labels=st.tuples(LABELS, LABELS),
    dropped=st.integers(0, 10**6),
)
def test_a_saved_workload_loads_back_equal_in_every_field(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, int, int]],
    labels: tuple[str, str],
    dropped: int,
) -> None:
    arrivals, prompts, outputs = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    workload = Workload.from_arrays(labels[0], arrivals, prompts, outputs, labels[1], dropped)
    path = tmp_path_factory.getbasetemp() / "trip.csv"
    save_csv(workload, path)
    loaded = load_trace(path)
    assert loaded == workload and loaded.digest == workload.digest


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2023-11-16T00:00:00.5", 0.5),
        ("2023-11-16 00:00:00.0000001", 1e-7),
        ("2023-11-16 00:00:00.123456789", 0.123456789),
        ("2023-11-16 01:00:00.25+00:00", 3600.25),
        ("2023-11-16 01:00:00Z", 3600.0),
        ("2023-11-16 02:00:01+02:00", 1.0),
        ("2023-11-15 19:00:02-05:00", 2.0),
        ("2024-03-01 00:00:00", 106 * 86400.0),
    ],
)
def test_azure_times_count_exactly_from_the_earliest(
    write: Write, stamp: str, seconds: float
) -> None:
    w = load_trace(write(f"{AZURE}2023-11-16 00:00:00,1,1\n{stamp},2,3\n", "azure.csv"))
    assert w.requests[1] == Request(1, seconds, 2, 3)
    assert (w.name, w.source, w.dropped) == ("azure", "Azure CSV azure.csv", 0)


def test_mooncake_milliseconds_become_seconds_and_other_keys_are_ignored(write: Write) -> None:
    note = "x" * 140_000
    w = load_trace(
        write(
            '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n'
            f'{{"output_length": 3, "input_length": 7, "timestamp": 1000.25, "note": "{note}"}}\n'
            '{"timestamp": 4e3, "input_length": 8, "output_length": 4}'
        )
    )
    rows = [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in w.requests]
    assert rows == [(0.0, 6758, 500), (0.00025, 7, 3), (3.0, 8, 4)]


def test_columns_in_any_order_a_mark_crlf_and_blank_lines_change_nothing(write: Write) -> None:
    expected = load_trace(write(MINE, "mine.csv"))
    assert load_trace(write("\ufeff" + MINE.replace("\n", "\r\n\r\n"), "mine.csv")) == expected
    text = 'output_tokens,model,arrival_s,prompt_tokens\n7,"a, b",1.5,6\n 9 ,c, 2e0 , 8\n'
    assert load_trace(write(text)).requests == (Request(0, 1.5, 6, 7), Request(1, 2.0, 8, 9))


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_packed_file_is_told_by_its_first_bytes(
    write: Write, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    expected, packed = load_trace(write(MINE, "mine.csv")), pack(MINE.encode())
    loaded = load_trace(write(packed, f"mine.csv.{ending}"))
    assert (loaded.requests, loaded.name) == (expected.requests, "mine")
    assert load_trace(write(packed, "mine.csv")) == expected
    for broken in (packed[:-9], packed[:6] + b"no more of it"):
        with pytest.raises(WorkloadError, match=r"begins like a \w+ file but cannot be unpacked"):
            load_trace(write(broken, "mine.csv"))


def test_a_zip_of_one_file_and_parquet_load(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("a.csv", MINE)
    assert load_trace(tmp_path / "mine.zip").requests[0] == Request(0, 0.5, 6, 7)
    with zipfile.ZipFile(tmp_path / "mine.zip", "a") as archive:
        archive.writestr("b.csv", KVLAB)
    with pytest.raises(WorkloadError, match=r"like a zip file but .* \(Multiple files found"):
        load_trace(tmp_path / "mine.zip")
    stamps = pd.to_datetime(["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"])
    table = {"TIMESTAMP": stamps, "ContextTokens": [374, 396], "GeneratedTokens": [44, 109]}
    path = write(b"PAR1...", "azure.parquet")
    monkeypatch.setattr(pd, "read_parquet", lambda _: pd.DataFrame(table))
    assert load_trace(path).requests[1] == Request(1, 4.314579, 396, 109)
    monkeypatch.undo()  # no reader of Parquet is installed, or this is none
    with pytest.raises(WorkloadError, match=r"like a parquet file but cannot be unpacked"):
        load_trace(path)


def test_requests_are_sorted_stably_and_those_that_generated_nothing_dropped(write: Write) -> None:
    w = load_trace(write(KVLAB + "2,1,1\n1,2,2\n2,3,3\n9,9,0\n0,4,4\n1,5,5\n", "mixed.csv"))
    assert [(r.rid, r.prompt_tokens) for r in w.requests] == list(enumerate([4, 2, 5, 1, 3]))
    assert w.source == "kvlab CSV mixed.csv; 2 lines out of order, sorted by arrival"
    assert w.dropped == 1


def test_a_limit_reads_so_many_requests_and_says_so(write: Write) -> None:
    path = write(KVLAB + "0,1,1\n1,2,2\nbroken\n")
    w = load_trace(path, limit=2)
    assert len(w) == 2 and w.source.endswith("; at most 2 requests read")
    with pytest.raises(WorkloadError, match="line 4"):
        load_trace(path)
    with pytest.raises(WorkloadError, match=r"limit is .* at least 1: got 0"):
        load_trace(path, limit=0)


def test_an_edited_file_no_longer_matches_its_digest(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    save_csv(Workload.from_arrays("w", [0.0, 1.0], [5, 6], [7, 8], "by hand"), path)
    edited = path.read_text().replace("0.0,5,7", "0.0,5,9")
    with pytest.raises(WorkloadError, match=r"w\.csv: the digest in the header .*delete the"):
        load_trace(write(edited, "w.csv"))
    without = "\n".join(line for line in edited.splitlines() if "digest" not in line)
    assert load_trace(write(without, "w.csv")).requests[0].output_tokens == 9
    assert len(load_trace(write(edited, "w.csv"), limit=1)) == 1


def azure(line: str) -> str:
    return AZURE + "2023-11-16 18:15:46.68,374,44\n" + line


def moon(time: object = 1, prompt: object = 1, output: object = 1) -> str:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": {}}}\n'.format
    return line(0, 1, 1) + line(time, prompt, output)


TIME = "2023-11-16 18:15:46.6"
LONG = "x" * 140_000
COUNT = r"a token count is a whole number in \[{}, 1073741823\], in digits: got '{}'".format
BAD = [
    *(
        (azure(f"{stamp},1,1"), r"^t\.x, line 3, column TIMESTAMP: a time is .* YYYY-MM-DD .*: got")
        for stamp in ("2023-11-16", "2023-13-16 18:15:46", "2023-11-16 24:15:46", TIME + "+99:99",
                      "", "9999-11-16 18:15:46")
    ),
    (azure(TIME + ",1"), r"line 3: every line has the 3 fields of the header: got '2023.*; corr"),
    (azure(TIME + ",1,1,1"), "line 3: every line has the 3 fields"),
    *(
        (azure(f"{TIME},{text},1"), "line 3, column ContextTokens: " + COUNT(1, text))
        for text in ("", "0", "-5", r"1_0", "١", "2147483648")
    ),
    (azure(f"{TIME},{'9' * 5000},1"), r"ContextTokens: .*got '99.*5002 characters\)"),
    *(
        (azure(f"\n{TIME},1,{text}"), "line 4, column GeneratedTokens: " + COUNT(0, text))
        for text in ("", "-1", r"12.5", "NaN")
    ),
    *(
        (KVLAB + text + ",1,1", rf"line 2, column arrival_s: .*seconds.* at least 0: got '{text}'")
        for text in ("nan", "inf", "1e999", "-0.5", "1_0", "")
    ),
    (KVLAB + "0,1,1\n# note\n", "line 3: every line has the 3 fields of the header: got '# note'"),
    ("arrival_s,prompt_tokens,output_tokens,arrival_s\n0,1,1,0", r"line 1: .*arrival_s once"),
    (KVLAB + f'0,5,"{LONG}"\n', r"line 2: a line is CSV .* \(field larger than field limit"),
    (KVLAB + '0,5,"5\n', r"line 2: a line is CSV .* \(unexpected end of data"),
    (KVLAB[:-1] + "\r0,5,5\r", r"line 1: a line is CSV that ends with LF .* \(new-line character"),
    (moon() + "{broken", r"t\.x, line 3: every line is one JSON object \(.*\): got '\{broken'"),
    (moon() + "[1, 2]", r"line 3: every line is one JSON object: got \[1, 2\]"),
    (moon() + "[" * 100_000, r"line 3: every line is one JSON object .*characters\)"),
    (moon(output='1, "input_length": 9'), r"line 2: .*JSON object .*'input_length' stands twice"),
    (moon() + '{"timestamp": 1, "input_length": 1}', "line 3, column output_length: every line h"),
    *(
        (moon(time=bad), "line 2, column timestamp: .*finite number of milliseconds, at least 0")
        for bad in ("NaN", "1e999", "-1", "true", '"5"', "1" * 400, "null")
    ),
    *(
        (moon(prompt=bad), "line 2, column input_length: a token count is a whole number")
        for bad in ("1.5", '"7"', "null", "true", "0", 2**31)
    ),
    (moon(output=-1), "column output_length: " + COUNT(0, -1)),
    ("", r"^t\.x: a trace begins with a header or a request: got an empty file; load_trace under"),
    ("\n# name: x\n", r"got an empty file \(comments only\)"),
    (AZURE, r"^t\.x: a trace holds at least 1 request .*: got no request; check"),
    (KVLAB + "0,1,0\n0,1,0\n", "got all 2 requests generated 0 tokens"),
    ("a,b,c\n1,2,3\n", r"line 1: begins like no known trace format: got 'a,b,c'; load_trace und"),
    (b"\xff\xfea\0", r"t\.x, line 1: a trace is UTF-8 text without NUL: got b'\\xff\\xfea"),
    (AZURE.encode() + b"a\xe9,1,1\n", "line 2: a trace is UTF-8 text"),
    (AZURE.encode() + b"a\0b", "line 2: a trace is UTF-8 text"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "error"), BAD)
def test_what_is_no_trace_is_named_with_file_line_column_value_rule_and_cure(
    write: Write, text: str | bytes, error: str
) -> None:
    with pytest.raises(WorkloadError, match=error):
        load_trace(write(text, "t.x"))


def test_a_path_without_a_file_is_named_and_a_file_is_replaced_whole(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"one file that can be read: '.*' gives Is a dir"):
        load_trace(tmp_path)
    with pytest.raises(WorkloadError, match=r"can be read: '.*none\.csv' gives No such .*looked"):
        load_trace(tmp_path / "none.csv")
    with pytest.raises(WorkloadError, match=r"can be read: '.*' gives .*[Tt]oo long"):
        load_trace(tmp_path / ("x" * 300))
    workload = Workload.from_arrays("a", [0.0], [1], [1], "x")
    with pytest.raises(WorkloadError, match=r"can be written: '.*' gives No such file"):
        save_csv(workload, tmp_path / "none" / "w.csv")
    path, link = tmp_path / "w.csv", tmp_path / "link.csv"
    path.write_text("before")
    link.hardlink_to(path)
    save_csv(workload, path)
    assert link.read_text() == "before"  # nobody wrote into the old file


def test_the_public_traces_load_whole() -> None:
    w = load_trace(public_trace("azure_llm_2023_conv.csv"))
    told = w.summary()
    assert (len(w), w.dropped) == (19_366, 0)
    assert (told["prompt_tokens"], told["output_tokens"]) == (22_361_870, 4_088_665)
    # 18:15:46.6805900 to 19:14:08.4025270, so nothing of the seventh decimal is lost.
    assert told["duration_s"] == 3501.721937
    w = load_trace(public_trace("mooncake_fast25_conversation.jsonl"))
    told = w.summary()
    assert (len(w), w.dropped) == (12_031, 0)
    assert (told["prompt_tokens"], told["output_tokens"]) == (144_793_823, 4_122_048)
    assert told["duration_s"] == 3536.999
