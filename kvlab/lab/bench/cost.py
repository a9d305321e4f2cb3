"""What operations cost, as ``make bench`` measured it: read from the files that are there.

One file a device, ``data/runs/bench-<device>.csv``; what a reader sees follows from which files
there are and which rows they hold, and what is not there is said. Worked example: of a folder with
``bench-cpu.csv`` alone

    costs = read_costs()
    costs.devices         ("cpu",)
    gpu_sentence(costs)   "No GPU figure exists yet: ..."

A share of a copy is the ratio to one copy of as many bytes in the same run: 0.8 means that ours
takes 1.25 times as long as the copy. A part without rows gives no sentence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kvlab.errors import StudyError
from kvlab.lab.bench import copies, ops
from kvlab.lab.findings import Finding, Number
from kvlab.lab.origin import Origin
from kvlab.memory.published import data_path

PREFIX = "bench-"
RECORD = "make bench ARGS='--repeat 3'"
RECORD_CUDA = "make bench ARGS='--repeat 3 --device cuda'"
CPU = "cpu"
_TIMES = ("ours_s_q1", "ours_s", "ours_s_q3", "baseline_s_q1", "baseline_s", "baseline_s_q3")
_RATIO = ("ratio_q1", "ratio", "ratio_q3")
_WORDS = (
    *("part", "case", "ours", "baseline", "met"),
    *("device", "torch", "kvlab", "commit", "created"),
)
NUMBERS = (*_TIMES, *_RATIO, "aim", "threads", "runs")
#: Columns that files had from the start; without them a file is no benchmark.
NEEDED = (*_WORDS, *NUMBERS)
#: Columns that tell sizes; a file recorded before they existed is read, and said to lack them.
SIZES = ("layers", "tokens", "ids", "dcp_size", "bytes", "share_of_copy")
LATER = ("op", "backend", *SIZES)
#: Every case that the benchmark has of the parts that are drawn.
CASES = {part: tuple(case.name for case in cases) for part, cases in ops.FULL.items()} | {
    copies.PART: tuple(case.name for case in copies.FULL)
}
MOST_NAMED = 3
#: The length of run that sentences speak of, if it was measured; else the longest that was.
IDS = 128 * 2**10
PARTS = {ops.MERGE: "merge of c partials", ops.WRITE: "owner write"}


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
        folder = data_path("runs", f"{PREFIX}{CPU}.csv").parent
    files = sorted(folder.glob(f"{PREFIX}*.csv"))
    if not files:
        raise StudyError(
            f"costs are read from files {PREFIX}<device>.csv: {folder.name!r} holds none; make one "
            f"with `{RECORD}`"
        )
    tables, lacking = [], {}
    for path in files:
        slug = path.stem.removeprefix(PREFIX)
        table = _read(path)
        lacking[slug] = tuple(name for name in LATER if table[name].isna().all())
        tables.append(table.assign(slug=slug))
    devices = sorted(lacking, key=lambda slug: (slug != CPU, slug))
    return Costs(pd.concat(tables, ignore_index=True), tuple(devices), lacking)


def _read(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, dtype=dict.fromkeys((*_WORDS, "op", "backend"), "str"))
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
    for name in found.columns.intersection([*NUMBERS, *SIZES]):
        numbers = pd.to_numeric(found[name], errors="coerce").astype("float64")
        wrong = found.index[numbers.isna() & found[name].notna()]
        if len(wrong):
            raise StudyError(
                f"{path.name}: {name} is a number or empty: line {wrong[0] + 2} has "
                f"{found[name][wrong[0]]!r}; record it again"
            )
        found[name] = numbers
    return found.reindex(columns=[*NEEDED, *LATER])


def localize_points(rows: pd.DataFrame, dcp_size: int = 8) -> pd.DataFrame:
    """Time of one localization: contender, ids, seconds_q1, seconds, seconds_q3; by ids.

    A contender that is the baseline of several rows has several times of the same calls: their
    median. Left out is what localizes for all ranks at once, and a run that was verified before.
    """
    mine = rows[(rows["part"] == ops.LOCALIZE) & (rows["dcp_size"] == dcp_size)]
    mine = mine[mine["ids"].notna() & ~mine["ours"].isin([ops.ALL, ops.FURTHER])]
    both = [
        mine[[name, "ids", f"{name}_s_q1", f"{name}_s", f"{name}_s_q3"]].set_axis(
            ["contender", "ids", "seconds_q1", "seconds", "seconds_q3"], axis=1
        )
        for name in ("ours", "baseline")
    ]
    every = pd.concat(both, ignore_index=True)
    return every.groupby(["contender", "ids"], sort=True, as_index=False).median()


def copy_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Backup and restore by size: op, measure ("ratio" to upstream's loop, "share" of one copy),
    layers, tokens, dcp_size, q1, value, q3, aim."""
    measures = {
        (copies.OURS, copies.UPSTREAM): "ratio",
        (copies.OURS, copies.OUT): "share",
        (copies.RESTORE, copies.UPSTREAM_BACK): "ratio",
        (copies.RESTORE, copies.BACK): "share",
    }
    pairs = pd.Series(list(zip(rows["ours"], rows["baseline"], strict=True)), index=rows.index)
    mine = rows.assign(measure=pairs.map(measures))
    mine = mine[(mine["part"] == copies.PART) & mine["measure"].notna()]
    mine = mine[mine["tokens"].notna() & mine["layers"].notna()]
    kept = mine[["op", "measure", "layers", "tokens", "dcp_size", *_RATIO, "aim"]]
    kept = kept.rename(columns=dict(zip(_RATIO, ("q1", "value", "q3"), strict=True)))
    order = ["op", "measure", "layers", "dcp_size", "tokens"]
    return kept.sort_values(order, ignore_index=True)


def share_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Merge and owner write as shares of one copy of the same bytes: part, case, contender,
    backend, dcp_size, bytes, q1, value, q3, aim."""
    mine = rows[rows["part"].isin([ops.MERGE, ops.WRITE]) & (rows["baseline"] == ops.COPY)]
    mine = mine[mine["bytes"].notna()]
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
    return pd.DataFrame(
        {
            "case": found["case"],
            "measured": found["ours"] + " / " + found["baseline"],
            "ratio (quartiles)": [f"{m:.3g} ({low:.3g}-{high:.3g})" for m, low, high in triples],
            "aim": [f">= {aim:.3g}" for aim in found["aim"]],
            "met": found["met"],
        }
    )


def gpu_aims() -> list[tuple[str, str, str]]:
    """(ours, beside, aim in words) of what is held against an aim on CUDA only."""
    return [
        ("backup, restore", copies.UPSTREAM, copies.ABOVE_UPSTREAM.words),
        ("backup, restore", f"{copies.OUT}, pinned", copies.NEAR_COPY.words),
        ("localize_run, 4M ids", ops.COPY, ops.NEAR_COPY.words),
        ("merge of c partials", ops.COPY, ops.NEAR_MERGE_COPY.words),
    ]


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

    device = "" if str(rows["device"].iloc[0]).startswith(CPU) else " --device cuda"
    return Origin(
        command=f"make bench ARGS='--repeat {told('runs')}{device}'",
        seed=None,
        parameters={"torch threads": told("threads")},
        device=told("device"),
        versions={"kvlab": told("kvlab"), "torch": told("torch")},
        commit=told("commit") or None,
        created=told("created"),
    )


def localize_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """What a checked localization costs beside the stride, the mask and a copy; None: no rows."""
    points = localize_points(rows)
    # What a pool calls: the op where Triton serves, else the localization of a run not yet seen.
    twin = ops.op_name(ops.LOCALIZE, "triton")
    op = twin if twin in set(points["contender"]) else ops.FIRST
    both = points[points["contender"].isin([op, ops.STRIDE])]
    lengths = both.groupby("ids").size().loc[lambda found: found == 2].index
    if not len(lengths):
        return None
    ids = IDS if IDS in lengths else max(lengths)
    seconds = points[points["ids"] == ids].set_index("contender")["seconds"].to_dict()
    mine = seconds[op]
    values: dict[str, Number] = {"device": slug, "op": op, "ids": ops.count_text(int(ids))}
    values["each"] = mine / ids * 1e9
    sentence = "Measured on {device}, runs of {ids} ids: {op} takes {each:.2g} ns an id"
    for key, name, words in (
        ("stride", ops.STRIDE, "{stride:.2g}x the time of an unchecked stride"),
        ("mask", ops.MASK, "{mask:.2g}x that of the mask"),
        ("copy", ops.COPY, "{copy:.2g}x that of a copy of the bytes it must move"),
    ):
        if name in seconds:
            sentence += f", {words}"
            values[key] = mine / seconds[name]
    return Finding(f"cost-localize-{slug}", sentence, values)


def copy_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """Backup and restore beside upstream's loop and one copy, over all sizes; None: no rows."""
    points = copy_points(rows)
    values: dict[str, Number] = {"device": slug}
    said = []
    for op in ("backup", "restore"):
        words = []
        for measure, text in (
            ("ratio", "{%s:.2g}x upstream's speed ({%s:.2g}x to {%s:.2g}x)"),
            ("share", "{%s:.0%%} of the speed of one copy ({%s:.0%%} to {%s:.0%%})"),
        ):
            found = points[(points["op"] == op) & (points["measure"] == measure)]["value"]
            if len(found):
                keys = tuple(f"{op}_{measure}_{end}" for end in ("mid", "low", "high"))
                words.append(text % keys)
                values |= dict(zip(keys, median_and_ends(found), strict=True))
                values[f"{op}_n"] = len(found)
        if words:
            said.append(f"{op} of {{{op}_n}} sizes: {' and '.join(words)}")
    if not said:
        return None
    return Finding(f"cost-copies-{slug}", f"Measured on {{device}}, {'; '.join(said)}", values)


def share_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """Merge and owner write as shares of one copy, each by its contenders; None: no rows."""
    values: dict[str, Number] = {"device": slug}
    said = []
    for i, (key, found) in enumerate(share_points(rows).groupby(["part", "contender"])):
        part, contender = key
        middle, low, high = median_and_ends(found["value"])
        said.append(
            f"{PARTS[str(part)]} by {{name{i}}} {{mid{i}:.0%}} ({{low{i}:.0%}} to {{high{i}:.0%}}, "
            f"{{n{i}}} {'case' if len(found) == 1 else 'cases'})"
        )
        values |= {f"name{i}": str(contender), f"mid{i}": middle, f"n{i}": len(found)}
        values |= {f"low{i}": low, f"high{i}": high}
    if not said:
        return None
    sentence = f"Measured on {{device}}, share of the speed of one copy: {'; '.join(said)}"
    return Finding(f"cost-shares-{slug}", sentence, values)


def aim_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """How many aims were met, and the one that was missed by most; None: nothing was aimed at."""
    found = aims(rows)
    if found.empty:
        return None
    met = int(found["met"].eq("yes").sum())
    values: dict[str, Number] = {"device": slug, "met": met, "all": len(found)}
    sentence = "Measured on {device}: {met} of {all} aims are met"
    if met < len(found):
        worst = found.iloc[int((found["ratio"] / found["aim"]).argmin())]
        values |= {name: str(worst[name]) for name in ("case", "ours", "baseline")}
        values |= {name: float(worst[name]) for name in ("ratio", "aim")}
        sentence += (
            "; furthest from its aim is {ours} beside {baseline} ({case}): {ratio:.2g} where "
            "{aim:.2g} was aimed at"
        )
    return Finding(f"cost-aims-{slug}", sentence, values)


def median_and_ends(values: "pd.Series[float]") -> tuple[float, float, float]:
    """(median, least, largest) of the medians of several cases."""
    return float(values.median()), float(values.min()), float(values.max())
