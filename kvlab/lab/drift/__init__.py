"""What retraction, DCP and each known defect do to the logprobs of a real model's tokens.

``kvlab.lab.drift.study`` runs a study; it imports transformers, which takes seconds. What is here
names, reads and judges: conditions, defects, metrics, the result tables.
"""

from kvlab.lab.drift.conditions import CONDITIONS, DTYPES, NAMES, Condition, condition
from kvlab.lab.drift.defects import DEFECTS, Defect, defect
from kvlab.lab.drift.metrics import METRICS, UPSTREAM_TOLERANCE, Metric, metric
from kvlab.lab.drift.prompts import Prompts, default_prompts, read_prompts
from kvlab.lab.drift.question import answers, signatures
from kvlab.lab.drift.results import Study, read_study, write_study
from kvlab.lab.drift.verdicts import Verdict, verdicts

__all__ = [
    "CONDITIONS",
    "DEFECTS",
    "DTYPES",
    "METRICS",
    "NAMES",
    "UPSTREAM_TOLERANCE",
    "Condition",
    "Defect",
    "Metric",
    "Prompts",
    "Study",
    "Verdict",
    "answers",
    "condition",
    "default_prompts",
    "defect",
    "metric",
    "read_prompts",
    "read_study",
    "signatures",
    "verdicts",
    "write_study",
]
