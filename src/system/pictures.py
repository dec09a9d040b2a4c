"""How pictures look and are written: the colours, the axes, a PNG and an SVG of each."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from src.system.colours import CURVES as CURVES  # the callers' colours come with the style
from src.system.files import written_atomically
from src.system.fonts import give_fonts, without_warnings

INK, FAINT = "#222222", "#777777"
SVG: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "reprise",
}  # text stays text, and equal pictures are equal files


def new_picture(width: float, height: float) -> Figure:
    """Returns an empty picture of that size in inches, which leaves room for what its panels are labelled with."""
    return Figure(
        figsize=(width, height), dpi=150, facecolor="white", layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    )


def style_axes(axes: Axes, grid: str = "y") -> None:
    """Draws ticks and a grid faintly, and no frame but the axes that carry numbers (`grid`: y, or both)."""
    axes.tick_params(labelsize=8, colors=FAINT, length=3, labelbottom=True)
    axes.grid(axis="y" if grid == "y" else "both", color="#E6E6E6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom" or (side == "left" and grid == "both"))
        spine.set_color("#BBBBBB")


def save_picture(picture: Figure, path: Path) -> None:
    """Writes `path` as PNG, and an SVG beside it. Raises UserError where they cannot be written."""
    FigureCanvasAgg(picture)
    give_fonts(picture, path)
    with matplotlib.rc_context(SVG), without_warnings():
        for file in (path, path.with_suffix(".svg")):
            with written_atomically(file) as temporary:
                metadata = {"Date": None} if file.suffix == ".svg" else None
                picture.savefig(temporary, format=file.suffix[1:], metadata=metadata)
