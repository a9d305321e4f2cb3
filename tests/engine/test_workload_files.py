"""Files: what is saved is loaded, formats are told apart, and a bad line is named exactly."""

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.workload import Request, Workload, load_trace, save_csv
from kvlab.errors import WorkloadError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
KVLAB = "arrival_s,prompt_tokens,output_tokens\n"
LABELS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)


class Write(Protocol):
    def __call__(self, text: str | bytes, name: str = ...) -> Path: ...


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str | bytes, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e12), st.integers(1, 2**30 - 1), st.integers(1, 2**30 - 1)),
        min_size=1,
        max_size=30,
    ),
    name=LABELS,
    source=LABELS,
    dropped=st.integers(0, 10**6),
)
def test_a_saved_workload_loads_back_equal_in_every_field(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, int, int]],
    name: str,
    source: str,
    dropped: int,
) -> None:
    rows.sort(key=lambda row: row[0])
    arrivals, prompts, outputs = zip(*rows, strict=True)
    workload = Workload.from_arrays(name, arrivals, prompts, outputs, source, dropped)
    path = tmp_path_factory.mktemp("round") / "trip.csv"
    save_csv(workload, path)
    assert load_trace(path) == workload
    assert load_trace(path).digest == workload.digest


def test_azure_times_count_exactly_from_the_earliest_request(write: Write) -> None:
    lines = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    w = load_trace(write(AZURE + lines, "azure.csv"))
    assert w.requests == (Request(0, 0.0, 374, 44), Request(1, 4.314579, 396, 109))
    assert (w.name, w.source, w.dropped) == ("azure", "Azure CSV azure.csv", 0)


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2023-11-16 00:00:01", 1.0),
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
def test_every_way_to_write_a_time_is_read(write: Write, stamp: str, seconds: float) -> None:
    w = load_trace(write(f"{AZURE}2023-11-16 00:00:00,1,1\n{stamp},2,2\n"))
    assert w.requests[1].arrival_s == seconds


def test_mooncake_milliseconds_become_seconds_and_hashes_are_ignored(write: Write) -> None:
    text = (
        '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"output_length": 3, "input_length": 7, "timestamp": 1000.25, "session": "x"}\n'
        '{"timestamp": 4000, "input_length": 8, "output_length": 4}'
    )
    w = load_trace(write(text, "moon.jsonl"))
    assert w.requests == (
        Request(0, 0.0, 6758, 500),
        Request(1, 0.00025, 7, 3),
        Request(2, 3.0, 8, 4),
    )


def test_columns_may_come_in_any_order_and_beside_others(write: Write) -> None:
    text = 'output_tokens,model,arrival_s,prompt_tokens\n7,"a, b",1.5,6\n 9 ,c, 2e0 , 8\n'
    assert load_trace(write(text)).requests == (Request(0, 1.5, 6, 7), Request(1, 2.0, 8, 9))


def test_a_byte_order_mark_crlf_and_blank_lines_change_nothing(write: Write) -> None:
    plain = KVLAB + "0.5,6,7\n1.5,8,9\n"
    expected = load_trace(write(plain, "mine.csv"))
    odd = "\ufeff" + plain.replace("\n", "\r\n\r\n")
    assert load_trace(write(odd, "mine.csv")) == expected


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_a_packed_file_is_told_by_its_first_bytes_and_loads_as_the_plain_one(
    write: Write, ending: str, pack: Callable[[bytes], bytes]
) -> None:
    plain = KVLAB + "0.5,6,7\n1.5,8,9\n"
    expected = load_trace(write(plain, "mine.csv"))
    packed = load_trace(write(pack(plain.encode()), f"mine.csv.{ending}"))
    assert (packed.requests, packed.name) == (expected.requests, "mine")
    assert load_trace(write(pack(plain.encode()), "mine.csv")) == expected
    with pytest.raises(WorkloadError, match=r"begins like a \w+ file but cannot be unpacked"):
        load_trace(write(pack(plain.encode())[:-9], "mine.csv"))


def test_a_zip_of_one_file_loads_and_one_of_two_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("a.csv", KVLAB + "0.5,6,7\n")
    assert load_trace(tmp_path / "mine.zip").requests == (Request(0, 0.5, 6, 7),)
    with zipfile.ZipFile(tmp_path / "mine.zip", "a") as archive:
        archive.writestr("b.csv", KVLAB)
    with pytest.raises(WorkloadError, match=r"like a zip file but .* \(Multiple files found"):
        load_trace(tmp_path / "mine.zip")


def test_parquet_with_the_columns_of_a_csv_loads(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = pd.to_datetime(["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"])
    table = {"TIMESTAMP": stamps, "ContextTokens": [374, 396], "GeneratedTokens": [44, 109]}
    path = write(b"PAR1...", "azure.parquet")
    monkeypatch.setattr(pd, "read_parquet", lambda _: pd.DataFrame(table))
    assert load_trace(path).requests[1] == Request(1, 4.314579, 396, 109)

    def lacking(_: object) -> None:
        raise ImportError("pyarrow is missing")

    monkeypatch.setattr(pd, "read_parquet", lacking)
    with pytest.raises(
        WorkloadError, match=r"like a parquet file but .* \(pyarrow is missing\); fetch"
    ):
        load_trace(path)


def test_requests_are_sorted_by_arrival_and_ties_keep_the_order_of_the_file(write: Write) -> None:
    w = load_trace(write(KVLAB + "2,1,1\n1,2,2\n2,3,3\n0,4,4\n1,5,5\n", "mixed.csv"))
    assert [r.prompt_tokens for r in w.requests] == [4, 2, 5, 1, 3]
    assert w.source == "kvlab CSV mixed.csv; 2 lines out of order, sorted by arrival"


@pytest.mark.parametrize(
    "text",
    [
        KVLAB + "1,5,0\n2,6,7\n3,5,0\n",
        AZURE + "2023-01-01 00:00:01,5,0\n2023-01-01 00:00:02,6,7\n2023-01-01 00:00:03,5,0\n",
        "".join(
            f'{{"timestamp": {t}, "input_length": 6, "output_length": {o}}}\n'
            for t, o in ((1, 0), (2, 7), (3, 0))
        ),
    ],
)
def test_requests_that_generated_nothing_are_dropped_and_counted(write: Write, text: str) -> None:
    w = load_trace(write(text))
    assert [(r.rid, r.prompt_tokens, r.output_tokens) for r in w.requests] == [(0, 6, 7)]
    assert w.dropped == 2


def test_a_limit_reads_so_many_requests_and_says_so(write: Write) -> None:
    path = write(KVLAB + "0,1,1\n1,2,2\nbroken\n")
    w = load_trace(path, limit=2)
    assert len(w) == 2
    assert w.source.endswith("; at most 2 requests read")
    with pytest.raises(WorkloadError, match="line 4"):
        load_trace(path)
    with pytest.raises(WorkloadError, match=r"limit is .* at least 1: got 0"):
        load_trace(path, limit=0)


def test_an_edited_file_no_longer_matches_its_digest(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "w.csv"
    save_csv(Workload.from_arrays("w", [0.0, 1.0], [5, 6], [7, 8], "by hand"), path)
    text = path.read_text()
    edited = text.replace("0.0,5,7", "0.0,5,9")
    with pytest.raises(WorkloadError, match=r"w\.csv: the digest in the header .*delete the"):
        load_trace(write(edited, "w.csv"))
    without = "\n".join(line for line in edited.splitlines() if "digest" not in line)
    assert load_trace(write(without, "w.csv")).requests[0].output_tokens == 9
    assert len(load_trace(write(edited, "w.csv"), limit=1)) == 1


def azure(*lines: str) -> str:
    return AZURE + "2023-11-16 18:15:46.68,374,44\n" + "\n".join(lines)


def moon(line: str) -> str:
    return '{"timestamp": 0, "input_length": 1, "output_length": 1}\n' + line


def keys(time: object = 1, prompt: object = 1, output: object = 1) -> str:
    return f'{{"timestamp": {time}, "input_length": {prompt}, "output_length": {output}}}'


BAD_LINES = [
    (azure("2023-11-16 18:15:46+99:99,1,1"), r"column TIMESTAMP: an offset is less than a day, hh"),
    (
        moon(keys()[:-1] + ', "input_length": 9}'),
        r"line 2: .*JSON object .*'input_length' stands t",
    ),
    (azure("2023-11-16,1,1"), r"t\.x, line 3, column TIMESTAMP: a time is written YYYY-MM-DD"),
    (azure("2023-13-16 18:15:46,1,1"), r"line 3, column TIMESTAMP: .*names a real day.*'2023-13"),
    (azure("2023-11-16 24:15:46,1,1"), r"column TIMESTAMP: .*a real day and time: got '2023"),
    (azure(",1,1"), r"line 3, column TIMESTAMP: a time is written .*: got ''; correct or remove"),
    (azure("2023-11-16 18:15:46.6,1"), r"line 3: every line has the 3 fields of the header: got"),
    (azure("2023-11-16 18:15:46.6,1,1,1"), r"line 3: every line has the 3 fields.*it has 4"),
    (azure("2023-11-16 18:15:46.6,,1"), r"line 3, column ContextTokens: .*must not be missing"),
    (azure("", "2023-11-16 18:15:46.6,1,"), r"line 4, column GeneratedTokens: .*not be missing"),
    (azure("2023-11-16 18:15:46.6,0,1"), r"column ContextTokens: .*in \[1, 1073741823\]: got 0;"),
    (azure("2023-11-16 18:15:46.6,-5,1"), r"column ContextTokens: .*in \[1, 1073741823\]: got -5"),
    (azure("2023-11-16 18:15:46.6,1,-1"), r"GeneratedTokens: .*in \[0, 1073741823\]: got -1"),
    (azure("2023-11-16 18:15:46.6,1,12.5"), r"GeneratedTokens: .*whole number.*got '12\.5'"),
    (azure("2023-11-16 18:15:46.6,1,NaN"), r"GeneratedTokens: .*whole number in digits.*'NaN'"),
    (azure("2023-11-16 18:15:46.6,1_0,1"), r"ContextTokens: .*whole number in digits.*'1_0'"),
    (azure("2023-11-16 18:15:46.6,١,1"), r"ContextTokens: .*whole number in digits"),
    (azure("2023-11-16 18:15:46.6,2147483648,1"), r"in \[1, 1073741823\]: got 2147483648"),
    (azure(f"2023-11-16 18:15:46.6,{'9' * 5000},1"), r"at most 1073741823: got '99.*5002 charact"),
    (KVLAB + "nan,1,1", r"t\.x, line 2, column arrival_s: an arrival is a finite number of"),
    (KVLAB + "inf,1,1", r"column arrival_s: .*at least 0: got 'inf'"),
    (KVLAB + "1e999,1,1", r"column arrival_s: .*at least 0: got '1e999'"),
    (KVLAB + "-0.5,1,1", r"column arrival_s: .*at least 0: got '-0\.5'; correct or remove"),
    (KVLAB + "1_0,1,1", r"column arrival_s: .*in digits.*got '1_0'"),
    (KVLAB + ",1,1", r"column arrival_s: .*got ''"),
    (KVLAB + "0,1,1\n# note\n", r"line 3: every line has the 3 fields of the header: got '# note'"),
    ("arrival_s,prompt_tokens,output_tokens,arrival_s\n0,1,1,0", r"line 1: .*arrival_s once"),
    (moon("{broken"), r"t\.x, line 2: every line is one JSON object \(.*\): got '\{broken'"),
    (moon("[1, 2]"), r"line 2: every line is one JSON object: got \[1, 2\]"),
    (moon("[" * 100_000), r"line 2: every line is one JSON object .*characters\)"),
    (moon('{"timestamp": 1, "input_length": 1}'), r"line 2, column output_length: every line hol"),
    (moon(keys(time="NaN")), r"line 2, column timestamp: .*finite number of milliseconds.*got nan"),
    (moon(keys(time="1e999")), r"column timestamp: .*got inf"),
    (moon(keys(time=-1)), r"column timestamp: .*at least 0: got -1"),
    (moon(keys(time="true")), r"column timestamp: .*got True"),
    (moon(keys(time='"5"')), r"column timestamp: .*got '5'"),
    (moon(keys(time="1" * 400)), r"column timestamp: .*characters\)"),
    (moon(keys(prompt="1.5")), r"line 2, column input_length: .*whole number: got 1\.5"),
    (moon(keys(prompt='"7"')), r"column input_length: .*whole number: got '7'"),
    (moon(keys(prompt="null")), r"column input_length: .*whole number: got None"),
    (moon(keys(output="true")), r"column output_length: .*whole number: got True"),
    (moon(keys(output=-1)), r"column output_length: .*in \[0, 1073741823\]: got -1"),
    (moon(keys(prompt=0)), r"column input_length: .*in \[1, 1073741823\]: got 0"),
    (moon(keys(prompt=2**31)), r"column input_length: .*got 2147483648"),
]


@pytest.mark.parametrize(("text", "error"), BAD_LINES, ids=[e[:60] for _, e in BAD_LINES])
def test_a_bad_line_is_named_with_file_line_column_value_rule_and_cure(
    write: Write, text: str, error: str
) -> None:
    with pytest.raises(WorkloadError, match=error):
        load_trace(write(text, "t.x"))


BAD_FILES = [
    (b"", r"t\.x: a trace begins with a header or a request: got an empty file; load_trace under"),
    (b"\n\n", r"got an empty file; load_trace understands"),
    (b"# name: x\n", r"got an empty file \(comments only\)"),
    (AZURE.encode(), r"t\.x: a trace holds at least 1 request .*: got no line after line 1"),
    ((KVLAB + "0,1,0\n0,1,0\n").encode(), r"got all 2 requests generated 0 tokens after line 1"),
    (b"a,b,c\n1,2,3\n", r"line 1: begins like no known trace format: got 'a,b,c'; load_trace und"),
    (b"TIMESTAMP;ContextTokens;GeneratedTokens\n", r"no known trace format: got 'TIMESTAMP;Conte"),
    (b"\xff\xfea\0", r"t\.x, line 1: a trace is UTF-8 text: got byte 0xff at offset 0 of the lin"),
    (AZURE.encode() + b"a\xe9,1,1\n", r"line 2: a trace is UTF-8 text: got byte 0xe9 at offset 1"),
    (AZURE.encode() + b"a\0b", r"line 2: a trace is UTF-8 text: got byte 0x00 at offset 1"),
    (b"\x1f\x8bnot gzip", r"t\.x begins like a gzip file but cannot be unpacked"),
    (
        gzip.compress((KVLAB + "0,1,1\n" * 50).encode())[:-12],
        r"begins like a gzip file but cannot be unpacked",
    ),
]


@pytest.mark.parametrize(("content", "error"), BAD_FILES, ids=[e[:60] for _, e in BAD_FILES])
def test_a_file_that_is_no_trace_is_named_with_what_it_holds(
    write: Write, content: bytes, error: str
) -> None:
    with pytest.raises(WorkloadError, match=error):
        load_trace(write(content, "t.x"))


def test_the_error_for_an_unknown_format_lists_all_that_are_known(write: Write) -> None:
    with pytest.raises(WorkloadError) as raised:
        load_trace(write("hello\n"))
    for part in (AZURE.strip(), "timestamp, input_length, output_length", KVLAB.strip()):
        assert part in str(raised.value)


def test_a_path_without_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"a trace is one file: got the folder '.*'; name a"):
        load_trace(tmp_path)
    with pytest.raises(WorkloadError, match=r"a trace must exist: no file at '.*none\.csv'"):
        load_trace(tmp_path / "none.csv")
    with pytest.raises(WorkloadError, match=r"must be readable: '.*' gives .*[Tt]oo long"):
        load_trace(tmp_path / ("x" * 300))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "w.csv", tmp_path / "link.csv"
    path.write_text("before")
    link.hardlink_to(path)
    save_csv(Workload.from_arrays("a", [0.0], [1], [1], "x"), path)
    assert link.read_text() == "before"  # nobody wrote into the old file


def test_saving_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    w = Workload.from_arrays("a", [0.0], [1], [1], "x")
    with pytest.raises(WorkloadError, match=r"can be written: '.*' gives No such file"):
        save_csv(w, tmp_path / "none" / "w.csv")


HEAD = KVLAB.strip()
LONG = "x" * 140_000


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f'{HEAD},note\n0,5,5,"{LONG}"\n', 2, r"field larger than field limit \(131072\)"),
        (f'{HEAD},"{LONG}"\n0,5,5,1\n', 1, r"field larger than field limit \(131072\)"),
        (f'"arrival_s",{HEAD[10:]}\r0,5,5\r1,5,5\r', 1, "new-line character seen"),
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
