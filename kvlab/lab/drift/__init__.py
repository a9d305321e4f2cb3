"""What retraction, DCP and each known defect do to the logprobs of a real model's tokens.

``DriftStudy`` runs conditions and defects, metrics are measured, tables written, read and judged.
Only ``run``, which a study loads when it makes a run, imports transformers.
"""

from kvlab.lab.drift.defects import (
    CONDITIONS,
    DEFECTS,
    DTYPES,
    INTERVAL,
    NAMES,
    PREFIX,
    Condition,
    Point,
    condition,
    defect,
)
from kvlab.lab.drift.prompts import Prompts, default_prompts, read_prompts
from kvlab.lab.drift.results import (
    SUMMARY,
    Study,
    read_study,
    read_token_drift,
    write_study,
)
from kvlab.lab.drift.study import DriftStudy
from kvlab.lab.drift.tables import (
    MARGIN,
    METRICS,
    UPSTREAM_TOLERANCE,
    first_above,
    metric,
    repetition_rate,
)
from kvlab.lab.drift.verdicts import REPORTED, Verdict, answers, argument, verdicts

__all__ = [
    "CONDITIONS",
    "DEFECTS",
    "DTYPES",
    "INTERVAL",
    "MARGIN",
    "METRICS",
    "NAMES",
    "PREFIX",
    "REPORTED",
    "SUMMARY",
    "UPSTREAM_TOLERANCE",
    "Condition",
    "DriftStudy",
    "Point",
    "Prompts",
    "Study",
    "Verdict",
    "answers",
    "argument",
    "condition",
    "default_prompts",
    "defect",
    "first_above",
    "metric",
    "read_prompts",
    "read_study",
    "read_token_drift",
    "repetition_rate",
    "verdicts",
    "write_study",
]
