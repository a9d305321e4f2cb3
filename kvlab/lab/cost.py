"""What operations cost, as ``make bench`` measured it: read from the files that are there.

One file a device, ``data/runs/bench-<device>.csv``; what a reader sees follows from which files
there are and which rows they hold, and what is not there is said. Worked example: of a folder with
``bench-cpu.csv`` alone

    costs = read_costs()
    costs.devices         ("cpu",)
    gpu_sentence(costs)   "No GPU figure exists yet: ..."

A share of a copy is the ratio to one copy of as many bytes in the same run: 0.8 means that ours
takes 1.25 times as long as the copy. It has quartiles, as every ratio has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.errors import KvlabError, StudyError
from kvlab.lab.bench import localize, merge, request_pool, requests, writes
from kvlab.lab.origin import Origin
from kvlab.memory.published import data_path

PREFIX = "bench-"
RECORD = "make bench ARGS='--repeat 3'"
RECORD_CUDA = "make bench ARGS='--repeat 3 --device cuda'"
CPU = "cpu"
_TIMES = ("ours_s_q1", "ours_s", "ours_s_q3", "baseline_s_q1", "baseline_s", "baseline_s_q3")
_RATIO = ("ratio_q1", "ratio", "ratio_q3")
_WORDS = (
    "part",
    "case",
    "ours",
    "baseline",
    "met",
    "device",
    "torch",
    "kvlab",
    "commit",
    "created",
)
NUMBERS = (*_TIMES, *_RATIO, "aim", "threads", "runs")
#: Columns that files had from the start; without them a file is no benchmark.
NEEDED = (*_WORDS, *NUMBERS)
#: Columns that tell sizes; a file recorded before they existed is read, and said to lack them.
SIZES = ("layers", "tokens", "ids", "dcp_size", "bytes", "share_of_copy")
LATER = ("op", "backend", *SIZES)
#: The names of one copy of as many bytes.
COPIES = (localize.COPY, request_pool.OUT, request_pool.BACK)
#: Every case that the benchmark has of the parts that are drawn.
CASES: dict[str, tuple[str, ...]] = {
    localize.PART: tuple(case.name for case in localize.FULL),
    requests.PART: tuple(case.name for case in requests.FULL),
    merge.PART: tuple(case.name for case in merge.FULL),
    writes.PART: tuple(case.name for case in writes.FULL),
}
MOST_NAMED = 3


@dataclass(frozen=True, eq=False)
class Costs:
    """The rows of all files, with ``slug``, the <device> of the file name.

    ``lacking``: slug -> the later columns that the file lacks, or has no value in.
    """

    table: pd.DataFrame
    devices: tuple[str, ...]
    lacking: dict[str, tuple[str, ...]]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The devices that are not a CPU."""
        return tuple(slug for slug in self.devices if slug.split("-")[0] != CPU)

    def of(self, slug: str) -> pd.DataFrame:
        """The rows of one device, timed with its largest number of torch threads.

        Errors: StudyError for a device without a file.
        """
        if slug not in self.devices:
            raise StudyError(
                f"a device has a file {PREFIX}<device>.csv: got {slug!r}, and there are "
                f"{', '.join(self.devices)}; record one with `make bench`"
            )
        rows = self.table[self.table["slug"] == slug]
        most = rows.groupby("part")["threads"].transform("max")
        return rows[rows["threads"] == most].reset_index(drop=True)


def read_costs(folder: Path | None = None) -> Costs:
    """All ``bench-*.csv`` of ``folder`` (default: data/runs).

    Errors: StudyError without a file, for one that cannot be read or lacks a needed column, and for
    a value that is no number where one belongs.
    """
    if folder is None:
        try:
            folder = data_path("runs", f"{PREFIX}{CPU}.csv").parent
        except KvlabError:
            folder = Path(__file__).resolve().parents[2] / "data" / "runs"
    files = sorted(folder.glob(f"{PREFIX}*.csv"))
    if not files:
        raise StudyError(
            f"costs are read from files {PREFIX}<device>.csv: {folder.name!r} holds none; make one "
            f"with `{RECORD}`"
        )
    tables, lacking = [], {}
    for path in files:
        slug = path.stem.removeprefix(PREFIX)
        table, lacking[slug] = _read(path)
        tables.append(table.assign(slug=slug))
    devices = sorted(lacking, key=lambda slug: (slug != CPU, slug))
    return Costs(pd.concat(tables, ignore_index=True), tuple(devices), lacking)


def _read(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    words = dict.fromkeys((*_WORDS, "op", "backend"), "str")
    try:
        found = pd.read_csv(path, dtype=words)
    except (OSError, ValueError) as error:
        raise StudyError(
            f"{path.name} is a CSV file that `make bench` wrote: {error}; record it again"
        ) from None
    absent = [name for name in NEEDED if name not in found]
    if absent:
        raise StudyError(
            f"{path.name} has the columns {', '.join(NEEDED)}: it lacks {', '.join(absent)}; "
            f"record it again with `make bench`"
        )
    for name in (*NUMBERS, *SIZES):
        if name in found:
            numbers = pd.to_numeric(found[name], errors="coerce").astype("float64")
            wrong = found.index[numbers.isna() & found[name].notna()]
            if len(wrong):
                raise StudyError(
                    f"{path.name}: {name} is a number or empty: line {wrong[0] + 2} has "
                    f"{found[name][wrong[0]]!r}; record it again"
                )
            found[name] = numbers
    later = tuple(name for name in LATER if name not in found or found[name].isna().all())
    return found.reindex(columns=[*NEEDED, *LATER]), later


def localize_points(rows: pd.DataFrame, dcp_size: int = 8) -> pd.DataFrame:
    """Time of one localization: contender, ids, seconds_q1, seconds, seconds_q3; by ids.

    A contender that is the baseline of several rows has several times of the same calls: their
    median. Left out is what localizes for all ranks at once, and a run that was verified before.
    """
    mine = rows[(rows["part"] == localize.PART) & (rows["dcp_size"] == dcp_size)]
    mine = mine[mine["ids"].notna() & ~mine["ours"].isin([localize.ALL, localize.FURTHER])]
    names = ("ours", "baseline")
    both = [
        mine[[name, "ids", f"{name}_s_q1", f"{name}_s", f"{name}_s_q3"]].set_axis(
            ["contender", "ids", "seconds_q1", "seconds", "seconds_q3"], axis=1
        )
        for name in names
    ]
    every = pd.concat(both, ignore_index=True)
    return every.groupby(["contender", "ids"], sort=True, as_index=False).median()


def copy_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Backup and restore by size: op, measure ("ratio" to upstream's loop, "share" of one copy),
    layers, tokens, dcp_size, q1, value, q3, aim."""
    measures = {request_pool.UPSTREAM: "ratio", request_pool.UPSTREAM_BACK: "ratio"}
    measures |= {request_pool.OUT: "share", request_pool.BACK: "share"}
    mine = rows[(rows["part"] == requests.PART) & rows["baseline"].isin(list(measures))]
    mine = mine[mine["tokens"].notna() & mine["layers"].notna()]
    found = mine.assign(measure=mine["baseline"].map(measures))
    kept = found[["op", "measure", "layers", "tokens", "dcp_size", *_RATIO, "aim"]]
    kept = kept.rename(columns=dict(zip(_RATIO, ("q1", "value", "q3"), strict=True)))
    order = ["op", "measure", "layers", "dcp_size", "tokens"]
    return kept.sort_values(order, ignore_index=True)


def share_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Merge and owner write as shares of one copy of the same bytes: part, case, contender,
    backend, dcp_size, bytes, q1, value, q3, aim."""
    parts = (merge.PART, writes.PART)
    mine = rows[rows["part"].isin(parts) & rows["baseline"].isin(COPIES) & rows["bytes"].notna()]
    kept = mine[["part", "case", "ours", "backend", "dcp_size", "bytes", *_RATIO, "aim"]]
    names = dict(zip(("ours", *_RATIO), ("contender", "q1", "value", "q3"), strict=True))
    kept = kept.rename(columns=names)
    return kept.sort_values(["part", "contender", "bytes", "dcp_size"], ignore_index=True)


def aims(rows: pd.DataFrame) -> pd.DataFrame:
    """What was aimed at: part, case, ours, baseline, ratio_q1, ratio, ratio_q3, aim, met."""
    columns = ["part", "case", "ours", "baseline", *_RATIO, "aim", "met"]
    return rows[rows["aim"].notna()][columns].reset_index(drop=True)


def aims_for_people(rows: pd.DataFrame) -> pd.DataFrame:
    """``aims`` as text: the ratio with its quartiles, the aim as a bound."""
    found = aims(rows)
    triples = zip(found["ratio"], found["ratio_q1"], found["ratio_q3"], strict=True)
    spread = [f"{middle:.3g} ({low:.3g}-{high:.3g})" for middle, low, high in triples]
    return pd.DataFrame(
        {
            "case": found["case"],
            "measured": found["ours"] + " / " + found["baseline"],
            "ratio (quartiles)": spread,
            "aim": [f">= {aim:.3g}" for aim in found["aim"]],
            "met": found["met"],
        }
    )


def missing(rows: pd.DataFrame, parts: Iterable[str] = tuple(CASES)) -> tuple[str, ...]:
    """One sentence for each part of which the benchmark has cases that ``rows`` lack."""
    said = []
    for part in parts:
        there = set(rows.loc[(rows["part"] == part) & rows["op"].notna(), "case"])
        absent = [case for case in CASES[part] if case not in there]
        if len(absent) == len(CASES[part]):
            said.append(f"{part.replace('_', ' ')}: none of {len(absent)} cases is measured")
        elif absent:
            more = len(absent) - MOST_NAMED
            tail = f" and {more} more" if more > 0 else ""
            names = "; ".join(absent[:MOST_NAMED])
            said.append(
                f"{part.replace('_', ' ')}: {len(absent)} of {len(CASES[part])} cases are not "
                f"measured ({names}{tail})"
            )
    return tuple(said)


def gpu_aims() -> list[tuple[str, str, str]]:
    """(ours, beside, aim in words) of what is held against an aim on CUDA only."""
    return [
        ("backup, restore", request_pool.UPSTREAM, requests.ABOVE_UPSTREAM.words),
        ("backup, restore", f"{request_pool.OUT}, pinned", requests.NEAR_COPY.words),
        ("localize_run, 4M ids", localize.COPY, localize.NEAR_COPY.words),
        ("merge of c partials", merge.COPY, merge.NEAR_COPY.words),
    ]


def drawn(points: pd.DataFrame, sentences: Sequence[str]) -> pd.DataFrame:
    """What a figure is saved with: its points, or, where it has none, what was not measured."""
    if len(points):
        return points
    return pd.DataFrame({"not_measured": list(sentences) or ["nothing"]})


def conditions(costs: Costs) -> pd.DataFrame:
    """One row a device and number of torch threads: what its rows were measured with."""
    by = ["slug", "device", "threads", "torch", "commit", "created"]
    found = costs.table.groupby(by, sort=False, dropna=False).size().rename("rows").reset_index()
    return found.assign(threads=found["threads"].astype(int))


def lacking_sentence(costs: Costs) -> str:
    """Which files were recorded before sizes were columns; "" if none was."""
    old = [f"{PREFIX}{slug}.csv" for slug, columns in costs.lacking.items() if columns]
    if not old:
        return ""
    return (
        f"{', '.join(old)} was recorded before its sizes were columns, so what needs them is "
        f"missing below; `{RECORD}` records it again."
    )


def gpu_sentence(costs: Costs) -> str:
    """Whether a GPU was measured, by the files that there are."""
    if costs.gpus:
        return f"GPU figures are those of {', '.join(costs.gpus)}."
    have = ", ".join(f"{PREFIX}{slug}.csv" for slug in costs.devices)
    return (
        f"No GPU figure exists yet: of the files data/runs/{PREFIX}<device>.csv there is only "
        f"{have}; `{RECORD_CUDA}` on a machine with a GPU makes another."
    )


def origin_of(rows: pd.DataFrame) -> Origin:
    """Where these rows come from; rows of several recordings name each. Errors: StudyError."""
    if rows.empty:
        raise StudyError(
            "an origin is that of rows: got none; take the rows of a device, Costs.of(slug)"
        )

    def told(column: str) -> str:
        values: Sequence[object] = rows[column].dropna().unique().tolist()
        return "/".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)

    on_gpu = not str(rows["device"].iloc[0]).startswith(CPU)
    device = " --device cuda" if on_gpu else ""
    return Origin(
        command=f"make bench ARGS='--repeat {told('runs')}{device}'",
        seed=None,
        parameters={"torch threads": told("threads")},
        device=told("device"),
        versions={"kvlab": told("kvlab"), "torch": told("torch")},
        commit=told("commit") or None,
        created=told("created"),
    )
