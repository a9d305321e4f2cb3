"""``kvlab retraction --figure OUT``: the counts as a picture for a page.

The ending of OUT names the format; fonts are embedded. Below the picture stands its caption, what
is counted and where it comes from. A paper sets captions itself: ``--caption beside`` leaves the
picture bare and writes the same words to a text file beside it.

    kvlab retraction --trace mine.csv --figure counts.pdf --caption beside
    counts.pdf    3.5 in wide, one column
    counts.txt    title, definition, origin
"""

import argparse
from pathlib import Path

import pandas as pd

from kvlab.cli.output import STDOUT, csv_place
from kvlab.errors import StudyError
from kvlab.lab.origin import Origin

ENDINGS = (".pdf", ".svg", ".png")


def add_figure_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--figure``, ``--columns`` and ``--caption``."""
    picture = parser.add_argument_group("the picture")
    picture.add_argument(
        "--figure",
        type=figure_place,
        metavar="OUT",
        help="draw the retractions over the DCP sizes into OUT, a .pdf, .svg or .png",
    )
    picture.add_argument(
        "--columns",
        type=int,
        choices=(1, 2),
        help="as wide as one column of a paper, 3.5 in, or as two, 7.2 in (1)",
    )
    picture.add_argument(
        "--caption",
        choices=("inside", "beside"),
        help="definition and origin: inside the picture, or beside it in a .txt (inside)",
    )


def figure_place(text: str) -> str:
    """``text`` if a picture can be made there. Errors: ArgumentTypeError, before any work."""
    if text == STDOUT or Path(text).suffix not in ENDINGS:
        raise argparse.ArgumentTypeError(
            f"OUT ends in {', '.join(ENDINGS)}, which says what is drawn: got {text!r}; name a "
            f"file with one of these"
        )
    return csv_place(text)


def require_figure(given: argparse.Namespace) -> None:
    """Refuse what only a figure can have where none is asked for. Errors: StudyError."""
    for option, value in (("--columns", given.columns), ("--caption", given.caption)):
        if given.figure is None and value is not None:
            raise StudyError(
                f"{option} is of a picture: got {option} {value} without --figure; name the file "
                f"with --figure OUT, or leave {option} out"
            )


def write_figure(given: argparse.Namespace, table: pd.DataFrame, origin: Origin) -> None:
    """Draw ``table`` into the file of ``--figure``, if that is asked for.

    Errors: KvlabError if it cannot be written.
    """
    if given.figure is None:
        return
    from kvlab.cli.retraction_drawing import draw

    draw(table, origin, given.figure, given.columns or 1, given.caption == "beside")
