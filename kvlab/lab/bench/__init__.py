"""The benchmark: what kvlab does, side by side with what it is measured against, in one run.

``python -m kvlab.lab.bench`` prints one line a comparison. A ratio is the time of the baseline over
ours, so above 1 ours is faster. Ours and the baseline take turns in every repetition, the ratio is
taken repetition by repetition, and its median and quartiles are shown: what else the machine does
then falls on both. Times are wall clock. Before anything is timed, both results are compared.

Worked example: ours takes 2, 2, 4 ms in three repetitions, the baseline 6, 8, 10 ms. The ratios are
3, 4, 2.5; the row says 3 (2.75 to 3.5).
"""

from kvlab.lab.bench.rows import Aim, Row
from kvlab.lab.bench.run import PARTS, run_bench

__all__ = ["PARTS", "Aim", "Row", "run_bench"]
