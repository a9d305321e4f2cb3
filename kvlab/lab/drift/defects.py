"""What the study runs: conditions, and the defects that public threads report around retraction.

no_retraction      the floor of merge and batch
forced_fixed       somebody is retracted every third forward, with the fix
forced_before_fix  the same with the code before the fix: the run of defect:widened_as_rows
natural            memory is short
recompute          as forced_fixed, but restored by a prefill of all tokens
defect:<name>      one defect on; ``faults`` does what an entry here says
"""

from dataclasses import dataclass
from typing import Literal

from kvlab.errors import StudyError

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
    source: str
    what: str
    acts_at: Literal["any c", "c > 1"]
    tell_apart: str
    hypothetical: bool = False
    dtypes: tuple[str, ...] = ("float32",)
    on_node: bool = False

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


DEFECTS = (
    Defect(
        "widened_as_rows",
        "widened ids as rows",
        "sglang#38645",
        "backup and restore index every rank's buffer with widened ids, without taking the rank's "
        "own and dividing by c",
        "c > 1",
        "log the largest id of a backup and the rows of a buffer: ids beyond 1/c of the slots "
        "raise",
        dtypes=("float32", "bfloat16"),
    ),
    Defect(
        "translated_twice",
        "translated twice",
        "sglang#39487 (what write_loc_is_dcp_resolved guards against)",
        "ids that are rows already are translated again: every c-th of them, divided by c",
        "c > 1",
        "count the rows that a rank saves: 1/c of what it owns",
    ),
    Defect(
        "state_not_restored",
        "KDA state not restored",
        "sglang#35957",
        "the rows come back, the recurrent state is the zeros of a new slot",
        "any c",
        "a checksum of the recurrent state before the backup and after the restore differs in "
        "every restored request, and a model without linear attention shows nothing",
    ),
    Defect(
        "state_stale",
        "KDA state of another",
        "variant of sglang#35957: which state a slot holds is not in the thread",
        "the rows come back, the recurrent state is what the slot's last user left",
        "any c",
        "log the state slot before and after: only requests whose slot another used in "
        "between are wrong",
        hypothetical=True,
    ),
    Defect(
        "snapshot_ahead",
        "snapshot one token ahead",
        "sglang#39743",
        "the state was saved one token ahead of the token history: the newest token runs twice",
        "any c",
        "turn the overlap of scheduling and forward off (--disable-overlap-schedule): it "
        "vanishes, and with it on every restored request is off from its first token",
    ),
    Defect(
        "snapshot_behind",
        "snapshot one token behind",
        "mirror of sglang#39743",
        "the state was saved before the last cached token ran, whose row is not there either",
        "any c",
        "the same switch as for one ahead, but the output repeats its last token instead of "
        "skipping one",
        hypothetical=True,
    ),
    Defect(
        "old_rows",
        "restored into the old rows",
        "a restore that keeps the ids of the backup",
        "rows are written where the request lay, which others may hold by now, and not to its new "
        "place",
        "any c",
        "log the slots of backup and restore: requests that were never retracted are wrong "
        "too, those that took the old slots",
        hypothetical=True,
    ),
    Defect(
        "nan_padding",
        "NaN in the padding row",
        "sglang#36207, where padded rows of a batch write it; when it begins is this study's",
        "row 0 of every rank is NaN from the first retraction on, and padding is multiplied by 0 "
        "where it should be selected away",
        "any c",
        "count NaN logits: requests that were never retracted have them, and all say one and "
        "the same token",
    ),
    Defect(
        "scales_lost",
        "scales not restored",
        "by reading MLATokenToKVPoolFP4, whose CPU copy moves the rows alone",
        "quantized rows come back, their scales stay what the new rows had",
        "any c",
        "run the same with unquantized KV: it vanishes",
        hypothetical=True,
        dtypes=("fp8",),
    ),
    Defect(
        "wrong_log_base",
        "wrong log base in the merge",
        "sglang#33926, sglang#34240",
        "lse in nats is merged as if it were in base 2",
        "c > 1",
        "compare with c = 1 without any retraction: all requests differ",
    ),
    Defect(
        "empty_lse_zero",
        "empty shard with lse 0",
        "sglang#33321",
        "a rank without rows reports lse 0 instead of -inf, so its zeros take part in the merge",
        "c > 1",
        "prompts prefilled on the decode node differ, those handed over do not",
        on_node=True,
    ),
)

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
