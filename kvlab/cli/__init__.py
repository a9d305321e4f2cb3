"""The command line: ``kvlab report``, ``kvlab crash``, ``kvlab owners``, ``kvlab retraction``."""

from kvlab.cli.program import main

__all__ = ["main"]
