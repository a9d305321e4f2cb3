"""Loading a workload from a file, and saving one: `load_trace` is the one call to know.

    >>> load_trace("azure_llm_2023_conv.csv", limit=500)       # the first 500 lines of the trace
    >>> save_csv(workload, "mine.csv"); load_trace("mine.csv") == workload        # True

Three rules hold for every format:

- Requests are sorted by arrival, stably, since public traces are merged from several sources; how
  many lines were out of order is kept in ``source``.
- A request that generated 0 tokens was cancelled or refused before it held any decode memory. It is
  left out and counted in ``dropped``. (Neither of the two public conversation traces holds one.)
- The earliest request of an Azure or Mooncake trace arrives at 0.0 s. A kvlab file keeps its times.

Cost: the Azure trace of 19,366 lines loads in about 0.15 s, the Mooncake trace of 12,031 in 0.3 s.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path

from kvlab.engine.workload.base import Workload
from kvlab.engine.workload.formats import AZURE, FORMATS, KVLAB, KVLAB_COLUMNS, MOONCAKE, Format
from kvlab.engine.workload.lines import Line, read_lines, shorten
from kvlab.errors import WorkloadError
from kvlab.memory.published import data_path

_NAMES = "\n".join(f"  {known.name}: {known.looks}" for known in FORMATS)
_TITLE = "# kvlab workload"


def load_trace(path: str | Path, limit: int | None = None) -> Workload:
    """Return the workload in a file of any known format, told by its first line.

    ``limit`` reads only the first so many requests. Errors: WorkloadError, see `lines`.
    """
    return _load(path, FORMATS, limit)


def load_azure_csv(path: str | Path, limit: int | None = None) -> Workload:
    """Return the workload in an Azure LLM inference trace (CSV). Errors: WorkloadError."""
    return _load(path, (AZURE,), limit)


def load_mooncake_jsonl(path: str | Path, limit: int | None = None) -> Workload:
    """Return the workload in a Mooncake trace (JSON lines). Errors: WorkloadError."""
    return _load(path, (MOONCAKE,), limit)


def load_csv(path: str | Path, limit: int | None = None) -> Workload:
    """Return the workload in kvlab's own CSV, as `save_csv` writes it. Errors: WorkloadError.

    A file without the header comments is welcome: it is named after its file.
    """
    return _load(path, (KVLAB,), limit)


def save_csv(workload: Workload, path: str | Path) -> None:
    """Write ``workload`` so that `load_csv` gives it back, equal in every field and digest.

    Arrivals are written with as many digits as their float needs. An existing file is replaced.
    """
    head = [
        _TITLE,
        f"# name: {workload.name}",
        f"# source: {workload.source}",
        f"# dropped: {workload.dropped}",
        f"# digest: {workload.digest}",
        ",".join(KVLAB_COLUMNS),
    ]
    body = (f"{r.arrival_s!r},{r.prompt_tokens},{r.output_tokens}" for r in workload.requests)
    text = "\n".join(chain(head, body)) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise WorkloadError(
            f"a workload is saved to a file that can be written: {str(path)!r} gives "
            f"{error.strerror or error}; name a file in an existing folder"
        ) from error


def default_workload() -> Workload:
    """Return the generated workload that ships with the project: 2,000 requests, closed loop."""
    return load_csv(data_path("workloads", "default.csv"))


def _load(path: str | Path, formats: tuple[Format, ...], limit: int | None) -> Workload:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise WorkloadError(
            f"limit is the number of requests to read, at least 1: got {limit!r}; leave it out to "
            f"read all of them"
        )
    path = Path(path)
    lines = read_lines(path)
    notes, first = _preamble(path, lines)
    known = next((candidate for candidate in formats if candidate.matches(first)), None)
    if known is None:
        what = "no known trace format" if len(formats) > 1 else f"no {formats[0].name}"
        raise WorkloadError(
            f"{path.name}, line {first.number}: begins like {what}: got {shorten(first.text)}; "
            f"load_trace understands\n{_NAMES}"
        )
    table = _collect(known, first, lines, limit)
    if not table.times:
        what = f"all {table.dropped} requests generated 0 tokens" if table.dropped else "no line"
        raise WorkloadError(
            f"{path.name}: a trace holds at least 1 request that generated a token: got {what} "
            f"after line {first.number}; check how the file was made"
        )
    return _finish(path, known, table, notes, limit)


def _preamble(path: Path, lines: Iterator[Line]) -> tuple[dict[str, str], Line]:
    """Return the ``# key: value`` notes at the head of a file, and the first line after them."""
    notes: dict[str, str] = {}
    for line in lines:
        if not line.text.startswith("#"):
            return notes, line
        key, colon, value = line.text[1:].partition(":")
        if colon:
            notes[key.strip()] = value.strip()
    raise WorkloadError(
        f"{path.name}: a trace begins with a header or a request: got an empty file"
        f"{' (comments only)' if notes else ''}; load_trace understands\n{_NAMES}"
    )


@dataclass(frozen=True)
class _Table:
    times: list[int | float]
    prompts: list[int]
    outputs: list[int]
    dropped: int


def _collect(known: Format, first: Line, lines: Iterator[Line], limit: int | None) -> _Table:
    table, dropped = _Table([], [], [], 0), 0
    for row in islice(known.rows(first, lines), limit):
        if row.output_tokens == 0:
            dropped += 1
            continue
        table.times.append(row.time)
        table.prompts.append(row.prompt_tokens)
        table.outputs.append(row.output_tokens)
    return replace(table, dropped=dropped)


def _finish(
    path: Path, known: Format, table: _Table, notes: dict[str, str], limit: int | None
) -> Workload:
    times = table.times
    late = sum(after < before for before, after in pairwise(times))
    order = sorted(range(len(times)), key=times.__getitem__)
    if known is KVLAB:
        arrivals = [float(times[i]) for i in order]
    else:
        arrivals = [(times[i] - times[order[0]]) / 1e9 for i in order]
    own = notes if known is KVLAB else {}
    source = own.get("source") or f"{known.name} {_printable(path.name)}"
    if limit is not None:
        source += f"; at most {limit} requests read"
    if late:
        source += f"; {late} lines out of order, sorted by arrival"
    noted = own.get("dropped", "0") if limit is None else "0"
    workload = Workload.from_arrays(
        own.get("name") or _printable(Path(path.name.removesuffix(".gz")).stem),
        arrivals,
        [table.prompts[i] for i in order],
        [table.outputs[i] for i in order],
        source,
        table.dropped + (int(noted) if noted.isdecimal() and len(noted) < 19 else 0),
    )
    digest = own.get("digest")
    if digest is not None and limit is None and digest != workload.digest:
        raise WorkloadError(
            f"{path.name}: the digest in the header belongs to the numbers below it: got numbers "
            f"of {workload.fingerprint!r} under a header of {shorten(digest[:12])}; the file was "
            f"edited after it was saved: restore it, or delete the '# digest' line"
        )
    return workload


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).strip() or "trace"
