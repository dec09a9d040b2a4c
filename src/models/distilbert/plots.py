"""The picture of a confusion matrix."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from src.system.pictures import FAINT, INK, new_picture, save_picture

SPARSE = 4  # with more labels than these, empty cells have no text


def confusion_picture(counts: Int64[np.ndarray, "labels labels"], names: Sequence[str], path: Path) -> None:
    """Writes a picture of the confusion matrix: sentences by true label (row) and predicted label (column).

    Raises UserError where the file cannot be written.
    """
    side = max(4.0, 0.55 * len(names))
    picture = new_picture(side * 1.1, side)
    axes = picture.subplots()
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(counts.shape):
        if len(names) > SPARSE and not counts[row, column]:
            continue
        text = f"{counts[row, column]:,}\n{shares[row, column]:.1%}"
        ink = "white" if shares[row, column] > 0.5 else INK
        axes.text(column, row, text, ha="center", va="center", color=ink, size=11 if len(names) <= 4 else 6)
    is_short = len(names) * max(map(len, names)) <= 24
    axes.set_xticks(range(len(names)), names, rotation=0 if is_short else 90)
    axes.set_yticks(range(len(names)), names, rotation=90 if is_short else 0, va="center")
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    right = counts.trace() / max(1, counts.sum())
    axes.set_title(f"{right:.2%} of {counts.sum():,} sentences right", loc="left", size=11, weight="bold", color=INK)
    axes.tick_params(labelsize=9, colors=FAINT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    save_picture(picture, path)
