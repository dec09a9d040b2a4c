"""Pictures of predictions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes
from src.training.prediction import Quality

DENSITY_FROM = 2000  # molecules from which a density is drawn instead of points


def parity_picture(
    predicted: Float[np.ndarray, " molecules"],
    true: Float[np.ndarray, " molecules"],
    quantity: str,
    errors: Sequence[Quality],
    path: Path,
) -> None:
    """Writes a picture of predicted against true values, with the line of equality and the errors.

    Raises UserError if the file cannot be written.
    """
    picture = new_picture(5, 4.8)
    axes = picture.subplots()
    both = np.concatenate([predicted, true])
    margin = 0.03 * (both.max() - both.min()) or 1.0
    low, high = both.min() - margin, both.max() + margin
    if len(true) < DENSITY_FROM:
        axes.scatter(true, predicted, s=9, color=CURVES[0], alpha=0.6, linewidths=0)
    else:
        extent = (low, high, low, high)
        cells = axes.hexbin(
            true, predicted, gridsize=70, bins="log", mincnt=1, cmap="viridis", extent=extent, linewidths=0
        )
        picture.colorbar(cells, ax=axes, shrink=0.7).set_label("molecules", color=FAINT, size=9)
    axes.plot([low, high], [low, high], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    shown = f" in {errors[0].unit}" if errors[0].unit else ""
    axes.set_xlabel(f"true {quantity}{shown}", color=INK)
    axes.set_ylabel(f"predicted {quantity}{shown}", color=INK)
    axes.set_title(f"{quantity} of {len(true):,} molecules", loc="left", size=11, weight="bold", color=INK)
    lines = "\n".join(f"{error.name} {error.value:.4g} {error.unit}".rstrip() for error in errors)
    axes.text(0.04, 0.96, lines, transform=axes.transAxes, size=9, color=INK, va="top")
    axes.text(0.98, 0.02, errors[0].of.partition(", ")[2], transform=axes.transAxes, size=7, color=FAINT, ha="right")
    style_axes(axes, grid="both")
    save_picture(picture, path)
