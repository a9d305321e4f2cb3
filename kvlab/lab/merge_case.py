"""One merge of partial attention outputs, with what each rank reports: right, and as it was done.

A rank without keys has no lse, and backends report -inf, +inf, NaN or 0 for it; some report in base
2 what others read in nats. ``out`` of rank r is r + 1: the merged output says whose share it is.
Lse ln 2 and ln 8 weigh 0.2 and 0.8, so 1 and 2 merge to 1.8; in base 2 they weigh 0.12 and 0.88.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import pandas as pd
import torch

from kvlab.attn import Partial, merge_partials
from kvlab.errors import StudyError

REPORTED = {"-inf": -math.inf, "+inf": math.inf, "NaN": math.nan, "0": 0.0}
Base = Literal["right", "wrong"]
Merge = Literal["checked", "plain"]


@dataclass(frozen=True, slots=True)
class MergeCase:
    """Args:
        lse: of each rank, nats, of its keys.
        empty: whether each rank has no key; its ``lse`` does not count then.
        reported: what the backend says for an empty rank, of ``REPORTED``.
        log_base: "wrong": the backend reports in base 2, and the merge reads nats.
        merge: "checked" takes NaN and +inf for empty (``Partial.with_nan_as_empty``), then merges;
            "plain" is a softmax over what is reported.

    Errors: StudyError for no rank, unequal lengths, an lse that is not finite, or an unknown word.
    """

    lse: tuple[float, ...]
    empty: tuple[bool, ...]
    reported: str = "-inf"
    log_base: Base = "right"
    merge: Merge = "checked"

    def __post_init__(self) -> None:
        finite = all(math.isfinite(value) for value in self.lse)
        if not self.lse or len(self.lse) != len(self.empty) or not finite:
            raise StudyError(
                f"a merge has an lse in nats, finite, and an empty flag for each of at least one "
                f"rank: got lse={self.lse}, empty={self.empty}"
            )

        words = {"reported": REPORTED, "log_base": get_args(Base), "merge": get_args(Merge)}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise StudyError(
                    f"{name} is one of {', '.join(known)}: got {getattr(self, name)!r}"
                )

    def table(self) -> pd.DataFrame:
        """One row a rank: ``rank``, ``empty``, ``lse`` (nats, NaN if empty), ``reported``, ``out``
        (0 if empty), ``right_weight``, ``weight``."""
        lse, empty = pd.Series(self.lse, dtype=float), pd.Series(self.empty, dtype=bool)
        rank = pd.RangeIndex(len(lse))
        # The merge takes what it gets for nats.
        said = lse / math.log(2.0) if self.log_base == "wrong" else lse
        said = said.mask(empty, REPORTED[self.reported])
        return pd.DataFrame(
            {
                "rank": rank,
                "empty": empty,
                "lse": lse.mask(empty),
                "reported": said,
                "out": (rank + 1.0).where(~empty, 0.0),
                "right_weight": _checked(lse.mask(empty, -math.inf)),
                "weight": _checked(said) if self.merge == "checked" else _plain(said),
            }
        )

    def outputs(self) -> tuple[float, float]:
        """The right output, and that of this merge: the weighted sums of ``out``."""
        table = self.table()
        right = float((table["right_weight"] * table["out"]).sum())
        return right, float((table["weight"] * table["out"]).sum(skipna=False))


def _checked(lse: pd.Series) -> list[float]:
    """The weights of ``merge_partials``: its output when the ranks' outputs are unit vectors."""
    units, values = (
        torch.eye(len(lse), dtype=torch.float64),
        torch.tensor(lse.tolist(), dtype=torch.float64),
    )
    parts = [Partial.with_nan_as_empty(*pair) for pair in zip(units, values, strict=True)]
    return [float(weight) for weight in merge_partials(parts).out]


def _plain(lse: pd.Series) -> list[float]:
    """exp(lse - max) over its sum, with no look at what is reported."""
    given = torch.tensor(lse.tolist(), dtype=torch.float64)
    weight = torch.exp(given - given.max())
    return [float(share) for share in weight / weight.sum()]
