"""The report: notebooks executed, figures under stable names, a site that works offline."""

from kvlab.report.arguments import add_arguments, run
from kvlab.report.build import NotebookFailed, Report, build_report
from kvlab.report.stamps import ReportError

__all__ = [
    "NotebookFailed",
    "Report",
    "ReportError",
    "add_arguments",
    "build_report",
    "run",
]
