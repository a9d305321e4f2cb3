"""What ``--figure`` writes. Apart from its options, because it imports matplotlib.

draw(table, origin, "counts.pdf", columns=1, beside=True)
counts.pdf    3.5 in wide, one column
counts.txt    title, definition, origin
"""

import sys
from pathlib import Path

import pandas as pd

from kvlab.cli.output import write_file
from kvlab.lab.origin import Origin
from kvlab.viz.retraction import retractions_by_dcp_figure, retractions_by_dcp_text
from kvlab.viz.save import figure_title, rendered


def draw(table: pd.DataFrame, origin: Origin, out: str, columns: int, beside: bool) -> None:
    """Draw ``table`` into ``out``, ``columns`` of a paper wide.

    ``beside``: the caption goes to the file of the same name in ``.txt``, not below the axes.
    Errors: KvlabError if a file cannot be written.
    """
    below = None if beside else origin
    fig = retractions_by_dcp_figure(table, below, "double" if columns == 2 else "single")
    write_file(rendered(fig)[Path(out).suffix[1:]], out, "picture", "--figure")
    print(f"wrote {out} ({fig.get_figwidth():g} in wide)", file=sys.stderr)
    if beside:
        words = str(Path(out).with_suffix(".txt"))
        text = f"{figure_title(fig)}\n\n{retractions_by_dcp_text(table)}\n\n{origin.footer()}\n"
        write_file(text.encode(), words, "caption", "--figure")
        print(f"wrote {words}", file=sys.stderr)
