"""The parts of a panel as HTML: the picture with its hover boxes, the sentence, the table.

A picture is one ``<img>`` with its bytes inside, so it has words for who cannot see it, and an
image map whose boxes the browser itself explains on hovering: no script, and it still works in a
file that no kernel serves.

Worked example: ``Spot(0.5, 1.0, 0.2, 0.1, "slot 21")`` covers the pixels from (48, 96) to
(67, 106), since a CSS inch has 96.
"""

import base64
import hashlib
import html
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from kvlab.viz.save import CSS_PX_PER_IN, Picture, show
from kvlab.viz.style import WIDTH_IN, figure, wrapped

OUT_OF_SIGHT = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)"
# White ground in dark themes too, with a frame that shows on either; text takes the theme's colour.
GROUND = "background:#FFFFFF;border:1px solid #8C8C8C;display:block;max-width:none"
INK = "color:var(--jp-content-font-color1, inherit)"
MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class Spot:
    """A box of a picture and the sentence that hovering shows; inches from the upper left."""

    x: float
    y: float
    wide: float
    high: float
    text: str

    def pixels(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in CSS pixels."""
        x, y = self.x, self.y
        ends = (x, y, x + self.wide, y + self.high)
        left, top, right, bottom = (round(CSS_PX_PER_IN * end) for end in ends)
        return left, top, right, bottom


def picture_html(picture: Picture, spots: Iterable[Spot] = ()) -> str:
    """The picture at its size, with the boxes of ``spots`` over it."""
    areas = [_area(spot) for spot in spots]
    # Named after what is in it: the same in every run, another for other boxes on the same page.
    made_of = hashlib.sha256(picture.png + "".join(areas).encode())
    name = f"kvlab-{made_of.hexdigest()[:12]}"
    use = f' usemap="#{name}"' if areas else ""
    made = f'<map name="{name}">{"".join(areas)}</map>' if areas else ""
    data = base64.b64encode(picture.png).decode()
    return (
        f'<div style="overflow-x:auto"><img src="data:image/png;base64,{data}" decoding="sync" '
        f'width="{picture.width}" height="{picture.height}" alt="{html.escape(picture.alt)}"{use} '
        f'style="{GROUND}">{made}</div>'
    )


def sentence_html(text: str, error: str | None = None) -> str:
    """What stands below a picture: ``text``, or the ``error`` that left the picture as it was."""
    if error is not None:
        return f'<p role="alert" style="{INK}"><b>Not drawn:</b> {html.escape(error)}</p>'
    return f'<p style="{INK}">{html.escape(text)}</p>' if text else ""


def table_html(table: pd.DataFrame, most: int = MOST_ROWS) -> str:
    """The first ``most`` rows, and how many there are if that is not all."""
    shown = table.head(most).to_html(index=False, border=0, na_rep="")
    more = f"<p>The first {most} of {len(table)} rows.</p>" if len(table) > most else ""
    return f'<div style="overflow-x:auto;{INK}">{shown}{more}</div>'


def _area(spot: Spot) -> str:
    coordinates = ",".join(map(str, spot.pixels()))
    told = html.escape(spot.text)
    return f'<area shape="rect" coords="{coordinates}" alt="{told}" title="{told}">'


def notice(text: str) -> Picture:
    """A picture of a sentence, for a panel that could not draw anything yet."""
    lines = wrapped(text, 9, WIDTH_IN["double"] * 72 - 20)
    fig = figure("double", height=0.3 + 0.2 * len(lines))
    fig.text(0.01, 0.5, "\n".join(lines), fontsize=9, va="center", parse_math=False)
    return show(fig, alt="no picture")
