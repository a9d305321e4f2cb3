"""The conditions of the study: which schedule, which way back, which defect.

    no_retraction      the floor of merge and batch
    forced_fixed       somebody is retracted every third forward, with the fix
    forced_before_fix      the same with the code before the fix, in its silent regime
    natural            memory is short
    recompute          as forced_fixed, but restored by a prefill of all tokens
    defect:<name>      one defect on, see ``defects``

``forced_before_fix`` and ``defect:widened_as_rows`` are one and the same run under two names.
"""

from dataclasses import dataclass

from kvlab.errors import StudyError
from kvlab.lab.drift.defects import DEFECTS, Defect, Schedule, defect

DTYPES = ("float32", "bfloat16", "fp8")
PREFIX = "defect:"


@dataclass(frozen=True, slots=True)
class Condition:
    """``name`` of the tables; ``title`` for people; ``schedule``: "calm" (room for all), "forced"
    (one request leaves every third forward), "natural" (the pool is short); ``restore``: "backup"
    or "recompute"; ``defect``: what is broken, None for nothing; ``dtypes`` it is run in."""

    name: str
    title: str
    schedule: Schedule
    restore: str = "backup"
    defect: Defect | None = None
    dtypes: tuple[str, ...] = DTYPES

    @property
    def runs_as(self) -> str:
        """The name under which its runs are kept; conditions that are the same share it."""
        name = self.defect.name if self.defect is not None else ""
        return f"{self.schedule}-{self.restore}{'-' if name else ''}{name}"

    @property
    def fixed(self) -> str:
        """The condition that differs from this one by its defect alone."""
        if self.defect is None:
            return self.name
        return {"calm": "no_retraction", "forced": "forced_fixed", "natural": "natural"}[
            self.schedule
        ]


_WIDENED = defect("widened_as_rows")
CONDITIONS = (
    Condition("no_retraction", "no retraction", "calm"),
    Condition("forced_fixed", "forced retraction, with the fix", "forced"),
    Condition(
        "forced_before_fix",
        "forced retraction, before the fix",
        "forced",
        defect=_WIDENED,
        dtypes=_WIDENED.dtypes,
    ),
    Condition("natural", "retraction when memory is short", "natural", dtypes=("float32",)),
    Condition("recompute", "forced, restored by recompute", "forced", "recompute",
              dtypes=("float32",)),
    *(
        Condition(PREFIX + found.name, found.title, found.schedule, "backup", found, found.dtypes)
        for found in DEFECTS
    ),
)  # fmt: skip
NAMES = tuple(found.name for found in CONDITIONS)


def condition(name: str) -> Condition:
    """The condition of that name. Errors: StudyError with the names that there are."""
    found = {known.name: known for known in CONDITIONS}.get(name)
    if found is None:
        raise StudyError(
            f"a condition is one of {', '.join(NAMES)}: got {name!r}; name one of these"
        )
    return found
