"""What operations cost, as ``make bench`` measured it: one file a device, ``bench-<device>.csv``.

A share of a copy is the ratio to one copy of as many bytes in the same run: 0.8 means that ours
takes 1.25 times as long as the copy. What is not in a file is said, and gives no sentence.
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

CPU, PREFIX = "cpu", "bench-"
_WORDS = (
    *("part", "case", "ours", "baseline", "met", "op", "backend"),
    *("device", "torch", "kvlab", "commit", "created"),
)
_RATIO = ["ratio_q1", "ratio", "ratio_q3"]
_NUMBERS = (
    *("ours_s_q1", "ours_s", "ours_s_q3", "baseline_s_q1", "baseline_s", "baseline_s_q3"),
    *(*_RATIO, "aim", "threads", "runs"),
    *("layers", "tokens", "ids", "dcp_size", "bytes", "share_of_copy"),
)
#: The columns that are read, with their types.
COLUMNS = {**dict.fromkeys(_WORDS, "str"), **dict.fromkeys(_NUMBERS, "float64")}
#: Every case that the benchmark has of the parts that are drawn.
CASES: dict[str, list[str]] = {}
for _case in (*ops.cases(quick=False), *copies.cases(quick=False)):
    CASES.setdefault(_case.part, []).append(_case.name)
MOST_NAMED = 3
#: The length of run that sentences speak of, if it was measured; else the longest that was.
IDS = 128 * 2**10
PARTS = {ops.MERGE: "merge of c partials", ops.WRITE: "owner write"}
#: What is no contender for the rows of one rank: all ranks, and the further ranks of old files.
_NOT_ONE_RANK = (ops.ALL, "localize, further rank")


@dataclass(frozen=True, eq=False)
class Costs:
    """The rows of all files, with ``slug``, the <device> of the file name."""

    table: pd.DataFrame
    devices: tuple[str, ...]

    def of(self, slug: str) -> pd.DataFrame:
        """The rows of one device, timed with its largest number of torch threads."""
        if slug not in self.devices:
            raise StudyError(f"no {PREFIX}{slug}.csv is here: there are {', '.join(self.devices)}")
        rows = self.table[self.table["slug"] == slug]
        most = rows.groupby("part")["threads"].transform("max")
        return rows[rows["threads"] == most].reset_index(drop=True)


def read_costs(folder: Path | None = None) -> Costs:
    """All ``bench-*.csv`` of ``folder`` (default: data/runs). Errors: StudyError without a file, or
    for one that cannot be read or lacks a column."""
    if folder is None:
        folder = data_path("runs", f"{PREFIX}{CPU}.csv").parent
    tables = {}
    for path in sorted(folder.glob(f"{PREFIX}*.csv")):
        slug = path.stem.removeprefix(PREFIX)
        try:
            found = pd.read_csv(path, dtype=COLUMNS, usecols=list(COLUMNS))
        except (OSError, ValueError) as error:
            raise StudyError(f"{path.name} is not what `make bench` wrote: {error}") from None
        tables[slug] = found.assign(slug=slug)
    if not tables:
        raise StudyError(f"{folder.name!r} holds no {PREFIX}<device>.csv; `make bench` makes one")
    devices = sorted(tables, key=lambda slug: (slug != CPU, slug))
    return Costs(pd.concat(tables.values(), ignore_index=True), tuple(devices))


def localize_points(rows: pd.DataFrame, dcp_size: int = 8) -> pd.DataFrame:
    """Time of one localization: contender, ids, seconds_q1, seconds, seconds_q3; by ids.

    A contender that is the baseline of several rows has several times of the same calls: their
    median.
    """
    mine = rows[(rows["part"] == ops.LOCALIZE) & (rows["dcp_size"] == dcp_size)]
    mine = mine[mine["ids"].notna() & ~mine["ours"].isin(_NOT_ONE_RANK)]
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
    mine = rows.assign(measure=pairs.map(measures)).dropna(subset=["measure", "tokens", "layers"])
    kept = mine[["op", "measure", "layers", "tokens", "dcp_size", *_RATIO, "aim"]]
    kept = kept.rename(columns=dict(zip(_RATIO, ("q1", "value", "q3"), strict=True)))
    order = ["op", "measure", "layers", "dcp_size", "tokens"]
    return kept.sort_values(order, ignore_index=True)


def share_points(rows: pd.DataFrame) -> pd.DataFrame:
    """Merge and owner write as shares of one copy of the same bytes: part, case, contender,
    backend, dcp_size, bytes, q1, value, q3, aim."""
    mine = rows[rows["part"].isin(list(PARTS)) & (rows["baseline"] == ops.COPY)]
    mine = mine[mine["bytes"].notna()]
    kept = mine[["part", "case", "ours", "backend", "dcp_size", "bytes", *_RATIO, "aim"]]
    names = dict(zip(("ours", *_RATIO), ("contender", "q1", "value", "q3"), strict=True))
    kept = kept.rename(columns=names)
    return kept.sort_values(["part", "contender", "bytes", "dcp_size"], ignore_index=True)


def aims_for_people(rows: pd.DataFrame) -> pd.DataFrame:
    """What was aimed at: the ratio with its quartiles, the aim as a bound, whether it was met."""
    found = rows[rows["aim"].notna()]
    return pd.DataFrame(
        {
            "case": found["case"],
            "measured": found["ours"] + " / " + found["baseline"],
            "ratio (quartiles)": [
                f"{m:.3g} ({low:.3g}-{high:.3g})" for low, m, high in found[_RATIO].to_numpy()
            ],
            "aim": [f">= {aim:.3g}" for aim in found["aim"]],
            "met": found["met"],
        }
    ).reset_index(drop=True)


def gpu_aims() -> list[tuple[str, str, str]]:
    """(ours, beside, aim in words) of what is held against an aim on CUDA only."""
    return [
        ("backup, restore", copies.UPSTREAM, f"at least {copies.ABOVE_UPSTREAM:g}x"),
        ("backup, restore", f"{copies.OUT}, pinned", f"at least {copies.NEAR_COPY:g}"),
        ("localize_run, 4M ids", ops.COPY, f"within {1 / ops.NEAR_COPY:.2g}x of it"),
        ("merge of c partials", ops.COPY, f"at least {ops.NEAR_MERGE_COPY:g}"),
    ]


def missing(rows: pd.DataFrame, parts: Iterable[str] = tuple(CASES)) -> tuple[str, ...]:
    """One sentence for each part of which the benchmark has cases that ``rows`` lack."""
    said = []
    for part in parts:
        there = set(rows.loc[rows["part"] == part, "case"])
        absent = [case for case in CASES[part] if case not in there]
        words = part.replace("_", " ")
        if len(absent) == len(CASES[part]):
            said.append(f"{words}: none of {len(absent)} cases is measured")
        elif absent:
            more = len(absent) - MOST_NAMED
            names = "; ".join(absent[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            said.append(f"{words}: {len(absent)} of {len(CASES[part])} cases are missing ({names})")
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


def gpu_sentence(costs: Costs) -> str:
    """Whether a GPU was measured, by the files that there are."""
    gpus = [slug for slug in costs.devices if slug.split("-")[0] != CPU]
    if gpus:
        return f"GPU figures are those of {', '.join(gpus)}."
    have = ", ".join(f"{PREFIX}{slug}.csv" for slug in costs.devices)
    return (
        f"No GPU figure exists yet: of the files data/runs/{PREFIX}<device>.csv there is only "
        f"{have}; `make bench ARGS='--repeat 3 --device cuda'` on a machine with a GPU makes "
        f"another."
    )


def origin_of(rows: pd.DataFrame) -> Origin:
    """Where these rows come from; rows of several recordings name each."""

    def told(column: str) -> str:
        values: Sequence[object] = rows[column].dropna().unique().tolist()
        return "/".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)

    device = "" if told("device").startswith(CPU) else " --device cuda"
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
    seconds = points.pivot(index="ids", columns="contender", values="seconds")
    if not {op, ops.STRIDE} <= set(seconds):
        return None
    seconds = seconds.dropna(subset=[op, ops.STRIDE])
    ids = IDS if IDS in seconds.index else int(seconds.index.max())
    times = seconds.loc[ids].dropna().to_dict()
    values: dict[str, Number] = {"device": slug, "op": op, "ids": ops.count_text(ids)}
    values["each"] = times[op] / ids * 1e9
    sentence = "Measured on {device}, runs of {ids} ids: {op} takes {each:.2g} ns an id"
    for key, name, words in (
        ("stride", ops.STRIDE, "{stride:.2g}x the time of an unchecked stride"),
        ("mask", ops.MASK, "{mask:.2g}x that of the mask"),
        ("copy", ops.COPY, "{copy:.2g}x that of a copy of the bytes it must move"),
    ):
        if name in times:
            sentence += f", {words}"
            values[key] = times[op] / times[name]
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
                values |= dict(zip(keys, _median_and_ends(found), strict=True))
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
        said.append(
            f"{PARTS[str(part)]} by {{name{i}}} {{mid{i}:.0%}} ({{low{i}:.0%}} to {{high{i}:.0%}}, "
            f"{{n{i}}} {'case' if len(found) == 1 else 'cases'})"
        )
        ends = zip(("mid", "low", "high"), _median_and_ends(found["value"]), strict=True)
        values |= {f"name{i}": str(contender), f"n{i}": len(found)}
        values |= {f"{end}{i}": value for end, value in ends}
    if not said:
        return None
    sentence = f"Measured on {{device}}, share of the speed of one copy: {'; '.join(said)}"
    return Finding(f"cost-shares-{slug}", sentence, values)


def aim_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """How many aims were met, and the one that was missed by most; None: nothing was aimed at."""
    found = rows[rows["aim"].notna()]
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


def _median_and_ends(values: "pd.Series[float]") -> tuple[float, float, float]:
    return float(values.median()), float(values.min()), float(values.max())
