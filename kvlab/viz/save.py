"""Save a figure under one name: SVG, PDF, PNG, its data as CSV, and where it comes from.

``save_figure(fig, "retractions", frame, origin)`` writes

    retractions.svg   retractions.pdf   retractions.png     the picture
    retractions.csv                                         the numbers drawn in it
    retractions.json                                        title, definition, origin, checksums

Equal inputs give equal bytes with the same version of matplotlib: dates are left out and the
ids inside the SVG are salted with a constant. Across versions compare the CSV.

``show(fig)`` is what a notebook cell ends with: a still picture of known size, small enough to
be committed.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import PIL.Image
from IPython.display import Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvlab.errors import KvlabError
from kvlab.files import whole_file
from kvlab.lab.findings import notebook_name, output_folder, require_slug
from kvlab.lab.origin import Origin, Value
from kvlab.viz.style import DEFINITION_ID, use_style

EXPORT_DPI = 200
CSS_PX_PER_IN = 96
SCREEN_DPI = 144
FACTS = ("name", "title", "definition", "notebook", "origin", "sha256")
ENDINGS = ("svg", "pdf", "png", "csv", "json")

# None removes an entry where matplotlib would write the time of day.
METADATA: Mapping[str, Mapping[str, str | None]] = {
    "svg": {"Date": None, "Creator": "kvlab"},
    "pdf": {"CreationDate": None, "Creator": "kvlab"},
    "png": {"Software": "kvlab"},
}
SETTLING_DRAWS = 4
DECIMALS = 5  # of the figure's width: a hundredth of a pixel
LEVEL = 17  # from one level of a channel to the next


@dataclass(frozen=True)
class SavedFigure:
    """One figure of a folder. ``sha256`` has the checksum of each file, by ending."""

    name: str
    folder: Path
    title: str
    definition: str
    notebook: str | None
    origin: Mapping[str, Value]
    sha256: Mapping[str, str]

    def path(self, ending: str) -> Path:
        """The file of ``ending``, one of ``ENDINGS``."""
        return self.folder / f"{self.name}.{ending}"

    def data(self) -> pd.DataFrame:
        """The numbers drawn in the figure."""
        return pd.read_csv(self.path("csv"))


class Picture(Image):
    """A PNG of a figure that notebooks show at the figure's size; ``alt`` describes it."""

    def __init__(self, fig: Figure, png: bytes, alt: str) -> None:
        width, height = (round(inches * CSS_PX_PER_IN) for inches in fig.get_size_inches())
        super().__init__(png, format="png", width=width, height=height, alt=alt)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return str(self.alt)


def save_figure(
    fig: Figure, name: str, data: pd.DataFrame, origin: Origin, folder: Path | str | None = None
) -> SavedFigure:
    """Write ``fig`` and its data to ``folder`` (default: see ``output_folder``).

    Files are replaced one by one when all have been made, so a failure leaves the old set.

    Errors: KvlabError for a name that is not a slug, or data without rows or columns.
    """
    require_slug(name, "figure")
    if data.empty:
        raise KvlabError(
            f"a figure is saved with the numbers that it shows, in a table with at least one row "
            f"and one column: {name!r} got one of shape {data.shape}"
        )
    target = output_folder() if folder is None else Path(folder).expanduser()
    target.mkdir(parents=True, exist_ok=True)
    use_style()
    files = rendered(fig)
    # An index without names is a row number; a named one is data.
    named = any(label is not None for label in data.index.names)
    files["csv"] = data.to_csv(index=named, lineterminator="\n").encode()
    saved = SavedFigure(
        name=name,
        folder=target,
        title=figure_title(fig) or name.replace("_", " ").replace("-", " ").capitalize(),
        definition=figure_definition(fig),
        notebook=notebook_name(),
        origin=origin.as_dict(),
        sha256={ending: hashlib.sha256(content).hexdigest() for ending, content in files.items()},
    )
    about = {fact: getattr(saved, fact) for fact in FACTS}
    about |= {"rows": len(data), "columns": [str(column) for column in data.columns]}
    files["json"] = (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()
    for ending, content in files.items():
        with whole_file(saved.path(ending)) as part:
            part.write_bytes(content)
    return saved


def figure_registry(folder: Path | str | None = None) -> tuple[SavedFigure, ...]:
    """The saved figures of ``folder``, by notebook and name; each ``.data()`` is a DataFrame."""
    source = output_folder() if folder is None else Path(folder)
    found = []
    for path in sorted(source.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        found.append(SavedFigure(folder=source, **{fact: about[fact] for fact in FACTS}))
    return tuple(sorted(found, key=lambda figure: (figure.notebook or "", figure.name)))


def show(fig: Figure, dpi: int = CSS_PX_PER_IN) -> Picture:
    """``fig`` as a still picture for a notebook, described by its title and definition.

    ``dpi``: 96 is one dot a CSS pixel, 144 suits a picture of much small text.
    """
    text = ". ".join(part for part in (figure_title(fig), figure_definition(fig)) if part)
    return Picture(fig, small_png(fig, dpi), text)


def small_png(fig: Figure, dpi: int) -> bytes:
    """``fig`` as a PNG with a palette, a third of the bytes."""
    return indexed_png(PIL.Image.open(io.BytesIO(png_bytes(fig, dpi))).convert("RGB"))


def indexed_png(picture: PIL.Image.Image) -> bytes:
    """A PNG with a palette. A figure has few colors: roles, grays, and the edges of letters; with
    16 levels a channel (0, 17, 34 .. 255) nearly always at most 256 different ones."""
    coarse = picture.point([LEVEL * round(value / LEVEL) for value in range(256)] * 3)
    out = io.BytesIO()
    coarse.convert("P", palette=PIL.Image.Palette.ADAPTIVE).save(out, "PNG", optimize=True)
    return out.getvalue()


def png_bytes(fig: Figure, dpi: float) -> bytes:
    """``fig`` as PNG, without the time of day."""
    out = io.BytesIO()
    fig.savefig(out, format="png", dpi=dpi, metadata=dict(METADATA["png"]))
    return out.getvalue()


def figure_title(fig: Figure) -> str:
    """The figure's own title, else the first title of its axes, else ""."""
    titles = [fig.get_suptitle()]
    titles += [ax.get_title(loc) for ax in fig.axes for loc in ("left", "center", "right")]
    return next((" ".join(title.split()) for title in titles if title.strip()), "")


def figure_definition(fig: Figure) -> str:
    """What ``caption`` wrote under the figure, in one line, else ""."""
    found = (text.get_text() for text in fig.texts if text.get_gid() == DEFINITION_ID)
    return " ".join(next(found, "").split())


def rendered(fig: Figure) -> dict[str, bytes]:
    """``fig`` as "svg", "pdf" and "png": one layout for all, and the same bytes each time.

    Constrained layout starts from what the last draw left and needs a few draws to settle; each
    format would then settle a little differently. So it settles first and rests meanwhile. What
    is left of the start, in the 12th decimal, would still change the ids of the SVG.
    """
    FigureCanvasAgg(fig)
    for _ in range(SETTLING_DRAWS):
        fig.draw_without_rendering()
    engine = fig.get_layout_engine()
    fig.set_layout_engine("none")
    in_layout = [(ax, ax.get_in_layout()) for ax in fig.axes]
    try:
        for ax in fig.axes:
            left, bottom, wide, high = ax.get_position(original=True).bounds
            box = round(left, DECIMALS), round(bottom, DECIMALS)
            ax.set_position((*box, round(wide, DECIMALS), round(high, DECIMALS)))
        files = {"png": png_bytes(fig, EXPORT_DPI)}
        for ending in ("svg", "pdf"):
            out = io.BytesIO()
            fig.savefig(out, format=ending, metadata=dict(METADATA[ending]))
            files[ending] = out.getvalue()
    finally:
        fig.set_layout_engine(engine)
        for ax, flag in in_layout:
            ax.set_in_layout(flag)
    return files
