"""What the study runs: conditions, and the defects that public threads report around retraction.

    no_retraction      the floor of merge and batch
    forced_fixed       somebody is retracted every third forward, with the fix
    forced_before_fix  the same with the code before the fix: the run of defect:widened_as_rows
    natural            memory is short
    recompute          as forced_fixed, but restored by a prefill of all tokens
    defect:<name>      one defect on

``data/drift/defects.csv`` is the catalog; ``faults`` does what an entry says.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvlab.errors import StudyError
from kvlab.memory.published import data_path

DTYPES = ("float32", "bfloat16", "fp8")
PREFIX = "defect:"
#: In forced schedules one request leaves every third forward: the default of
#: SGLANG_TEST_RETRACT_INTERVAL.
INTERVAL = 3
KEY = ("condition", "defect", "dcp_size", "dtype")


@dataclass(frozen=True, slots=True)
class Defect:
    """``source``: the thread that reports it, or why it is here (``hypothetical``: no thread does);
    ``what`` it does here; ``acts_at``: where it can change anything (at c = 1 a widened id is a
    row and a merge has nothing to merge); ``tell_apart``: a measurement on a real server that would
    show this one and no other; ``on_node``: prefilled on the decode node, with no hand-over."""

    name: str
    title: str
    acts_at: Literal["any c", "c > 1"]
    dtypes: tuple[str, ...]
    on_node: bool
    hypothetical: bool
    source: str
    what: str
    tell_apart: str

    def can_act(self, dcp_size: int) -> bool:
        """Whether it can change anything at that DCP size."""
        return self.acts_at == "any c" or dcp_size > 1


@dataclass(frozen=True, slots=True)
class Condition:
    """``schedule``: "calm" (room for all), "alone" (so, and one request a forward), "forced" (one
    leaves every third forward), "natural" (the pool is short); ``dtypes`` it is run in."""

    name: str
    title: str
    schedule: Literal["alone", "calm", "forced", "natural"]
    restore: Literal["backup", "recompute"] = "backup"
    defect: Defect | None = None
    dtypes: tuple[str, ...] = DTYPES

    @property
    def runs_as(self) -> str:
        """The name under which its runs are kept; conditions that are the same share it."""
        return f"{self.schedule}-{self.restore}" + (f"-{self.defect.name}" if self.defect else "")

    @property
    def fixed(self) -> str:
        """The condition that differs from this one by its defect alone."""
        return self.name if self.defect is None else "forced_fixed"


@dataclass(frozen=True, slots=True)
class Point:
    """A row of the summary: a condition at a DCP size in a dtype of ``DTYPES``."""

    known: Condition
    dcp_size: int
    dtype: str

    @property
    def key(self) -> dict[str, object]:
        """Its columns in every table; ``defect`` is "" for none."""
        defect = self.known.defect.name if self.known.defect else ""
        return dict(zip(KEY, (self.known.name, defect, self.dcp_size, self.dtype), strict=True))


def _catalog() -> Iterator[Defect]:
    with data_path("drift", "defects.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            flags = {name: row[name] == "yes" for name in ("on_node", "hypothetical")}
            yield Defect(**row | flags | {"dtypes": tuple(row["dtypes"].split())})


DEFECTS = tuple(_catalog())

CONDITIONS = (
    Condition("no_retraction", "no retraction", "calm"),
    Condition("forced_fixed", "forced retraction, with the fix", "forced"),
    Condition("forced_before_fix", "forced retraction, before the fix", "forced",
              defect=DEFECTS[0], dtypes=DEFECTS[0].dtypes),
    Condition("natural", "retraction when memory is short", "natural", dtypes=("float32",)),
    Condition("recompute", "forced, restored by recompute", "forced", "recompute",
              dtypes=("float32",)),
    *(Condition(PREFIX + x.name, x.title, "forced", defect=x, dtypes=x.dtypes) for x in DEFECTS),
)  # fmt: skip
NAMES = tuple(known.name for known in CONDITIONS)
#: What every run is compared with, at one rank; in no table.
REFERENCE = Condition("reference", "the reference", "alone")


def defect(name: str) -> Defect:
    """The defect of that name. Errors: KeyError."""
    return {found.name: found for found in DEFECTS}[name]


def condition(name: str) -> Condition:
    """The condition of that name. Errors: StudyError with the names that there are."""
    if name not in NAMES:
        raise StudyError(
            f"a condition is one of {', '.join(NAMES)}: got {name!r}; name one of these"
        )
    return CONDITIONS[NAMES.index(name)]
