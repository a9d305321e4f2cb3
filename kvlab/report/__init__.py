"""The report: notebooks executed, figures under stable names, a site that works offline."""

from kvlab.report.build import NotebookFailed, Report, build_report
from kvlab.report.execute import unused_trace
from kvlab.report.notebook_files import ReportError

__all__ = ["NotebookFailed", "Report", "ReportError", "build_report", "unused_trace"]
