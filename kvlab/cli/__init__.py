"""The command line ``kvlab``: report, crash, owners, retraction, drift, doctor."""

from kvlab.cli.program import main

__all__ = ["main"]
