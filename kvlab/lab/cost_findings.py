"""What the benchmark of a device says, as sentences whose numbers are computed from its rows.

A part without rows gives no sentence: what is not measured is not told. Worked example: backups at
2x and 4x upstream's speed and 0.7 and 0.9 of one copy

    Measured on cpu, backup of 2 sizes: 3x upstream's speed (2x to 4x) and 80% of the speed of ...
"""

from dataclasses import dataclass

import pandas as pd

from kvlab.lab.bench import localize
from kvlab.lab.bench.localize import count_text
from kvlab.lab.cost import aims, copy_points, localize_points, share_points
from kvlab.lab.findings import Finding, Number

#: The length of run that sentences speak of, if it was measured; else the longest that was.
IDS = 128 * 2**10
OPS = ("backup", "restore")
PARTS = {"merge": "merge of c partials", "owner_write": "owner write"}


@dataclass(frozen=True, slots=True)
class Range:
    """Median, least and largest of the medians of several cases."""

    middle: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: pd.Series) -> "Range":
        """The range of one value or more."""
        low, middle, high = (float(values.quantile(q)) for q in (0, 0.5, 1))
        return cls(middle, low, high, len(values))


def localize_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """What a checked localization costs beside the stride, the mask and a copy; None: no rows."""
    points = localize_points(rows)
    # What a pool calls: the op where Triton serves, else the localization of a run not yet seen.
    twin = localize.run_name("triton")
    op = twin if twin in set(points["contender"]) else localize.FIRST
    both = points[points["contender"].isin([op, localize.STRIDE])]
    lengths = both.groupby("ids").size().loc[lambda found: found == 2].index
    if not len(lengths):
        return None
    ids = IDS if IDS in lengths else max(lengths)
    seconds = points[points["ids"] == ids].set_index("contender")["seconds"].to_dict()
    mine = seconds[op]
    values: dict[str, Number] = {"device": slug, "op": op, "ids": count_text(int(ids))}
    values |= {"each": mine / ids * 1e9}
    sentence = "Measured on {device}, runs of {ids} ids: {op} takes {each:.2g} ns an id"
    named = {
        "stride": (localize.STRIDE, "{stride:.2g}x the time of an unchecked stride"),
        "mask": (localize.MASK, "{mask:.2g}x that of the mask"),
        "copy": (localize.COPY, "{copy:.2g}x that of a copy of the bytes it must move"),
    }
    for key, (name, words) in named.items():
        if name in seconds:
            sentence += f", {words}"
            values[key] = mine / seconds[name]
    return Finding(f"cost-localize-{slug}", sentence, values)


def copy_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """Backup and restore beside upstream's loop and one copy, over all sizes; None: no rows."""
    points = copy_points(rows)
    values: dict[str, Number] = {"device": slug}
    said = []
    for op in OPS:
        words = []
        for measure, text in (
            ("ratio", "{%s:.2g}x upstream's speed ({%s:.2g}x to {%s:.2g}x)"),
            ("share", "{%s:.0%%} of the speed of one copy ({%s:.0%%} to {%s:.0%%})"),
        ):
            found = points[(points["op"] == op) & (points["measure"] == measure)]["value"]
            if len(found):
                told = Range.of(found)
                keys = tuple(f"{op}_{measure}_{end}" for end in ("mid", "low", "high"))
                words.append(text % keys)
                values |= dict(zip(keys, (told.middle, told.low, told.high), strict=True))
                values[f"{op}_n"] = told.count
        if words:
            said.append(f"{op} of {{{op}_n}} sizes: {' and '.join(words)}")
    if not said:
        return None
    return Finding(f"cost-copies-{slug}", f"Measured on {{device}}, {'; '.join(said)}", values)


def share_finding(rows: pd.DataFrame, slug: str) -> Finding | None:
    """Merge and owner write as shares of one copy, each by its contenders; None: no rows."""
    points = share_points(rows)
    values: dict[str, Number] = {"device": slug}
    said = []
    for i, ((part, contender), found) in enumerate(points.groupby(["part", "contender"])):
        told = Range.of(found["value"])
        cases = "case" if told.count == 1 else "cases"
        said.append(
            f"{PARTS[str(part)]} by {{name{i}}} {{mid{i}:.0%}} ({{low{i}:.0%}} to {{high{i}:.0%}}, "
            f"{{n{i}}} {cases})"
        )
        values |= {f"name{i}": str(contender), f"mid{i}": told.middle, f"n{i}": told.count}
        values |= {f"low{i}": told.low, f"high{i}": told.high}
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
        order = (found["ratio"] / found["aim"]).argsort()
        worst = found.iloc[int(order.iloc[0])]
        values |= {"case": str(worst["case"]), "ours": str(worst["ours"])}
        values |= {"baseline": str(worst["baseline"]), "ratio": float(worst["ratio"])}
        values |= {"aim": float(worst["aim"])}
        sentence += (
            "; furthest from its aim is {ours} beside {baseline} ({case}): {ratio:.2g} where "
            "{aim:.2g} was aimed at"
        )
    return Finding(f"cost-aims-{slug}", sentence, values)
