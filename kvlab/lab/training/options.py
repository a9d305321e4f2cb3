"""The options of ``python -m kvlab.lab.training``, apart from it, which imports the model."""

import argparse
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(
        prog="python -m kvlab.lab.training",
        description="Train the tiny Kimi Linear on this Python's standard library.",
        epilog="The defaults are those of the shipped checkpoint: 43 minutes with one thread.",
    )
    made.add_argument("out", type=Path, metavar="OUT", help="a folder without a training")
    made.add_argument("--smoke", action="store_true", help="a few short steps, under a minute")
    made.add_argument("--seed", type=_whole, metavar="N", default=2026, help="default 2026")
    made.add_argument(
        "--threads", type=_whole, metavar="N", help="threads of torch; else what torch takes"
    )
    made.add_argument(
        "--measure-only", action="store_true", help="train nothing, measure what lies in OUT"
    )
    return made


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1: got {text!r}")
    return int(text)
