"""The confusion matrix of a classification, and its picture."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int64

from src.printable import printable

MOST = 20  # classes that one picture shows
LARGE = 6  # up to so many classes, cells have shares too
LONGEST = 22  # characters of a class's name


def confusion(
    labels: Int[np.ndarray, " samples"], true: Int[np.ndarray, " samples"], classes: int
) -> Int64[np.ndarray, "classes classes"]:
    """Returns how many samples of each true label (row) got each label (column)."""
    return np.bincount(true * np.int64(classes) + labels, minlength=classes**2).reshape(classes, classes)


def most_confused(counts: Int64[np.ndarray, "classes classes"]) -> Int64[np.ndarray, " shown"]:
    """Returns the up to MOST classes of the most frequent confusions, in their order; all if there are no more."""
    if len(counts) <= MOST:
        return np.arange(len(counts))
    wrong = counts - np.diag(counts.diagonal())
    pairs = np.argsort(-wrong, axis=None, kind="stable")[: MOST**2]
    both = np.stack(np.unravel_index(pairs, counts.shape), 1).ravel()  # row, column, row, column
    return np.sort(np.array(list(dict.fromkeys(both.tolist()))[:MOST]))


def confusion_picture(
    counts: Int64[np.ndarray, "classes classes"], names: Sequence[str], unit: str, path: Path
) -> None:
    """Writes a picture of the confusion matrix by true label (row) and predicted label (column).

    A cell's colour is its share of its row. Of many classes it shows those of the most frequent confusions.

    Args:
        unit: what is counted, such as images.

    Raises UserError where the file cannot be written.
    """
    from src.system.pictures import FAINT, INK, new_picture, save_picture  # not at the top: matplotlib

    chosen = most_confused(counts)
    totals, cells = counts.sum(1)[chosen], counts[np.ix_(chosen, chosen)]
    shares = cells / totals.clip(1)[:, None]
    texts = [shortened(names[number]) for number in map(int, chosen)]
    size, is_large = len(chosen), len(chosen) <= LARGE
    longest = max(map(len, texts))
    side = (1.2 if is_large else 0.44) * size + 0.07 * (0 if is_large else longest)
    picture = new_picture(max(4.4, side + 1.2), max(4.0, side + 0.9))
    axes = picture.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(cells.shape):
        count, ink = f"{cells[row, column]:,}", "white" if shares[row, column] > 0.5 else INK
        if is_large or cells[row, column]:
            text = f"{count}\n{shares[row, column]:.1%}" if is_large else count
            axes.text(column, row, text, ha="center", va="center", color=ink, size=11 if is_large else 7)
    is_wide = longest * size > 50
    axes.set_xticks(range(size), texts, rotation=90 if is_wide else 0)
    axes.set_yticks(range(size), texts, rotation=0 if is_wide else 90, va="center")
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)
    right = counts.trace() / max(1, counts.sum())
    title = f"{right:.2%} of {counts.sum():,} {unit} right"
    if size < len(counts):
        title += f"\nthe {size} most confused of {len(counts):,} classes, without the others"
    axes.set_title(title, loc="left", size=11, weight="bold", color=INK)
    axes.tick_params(labelsize=9 if is_large else 8, colors=FAINT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    save_picture(picture, path)


def shortened(name: str) -> str:
    """Returns a class's name on one line, with control characters written out, in at most LONGEST characters."""
    name = printable(name).replace("\n", "\\n").replace("\t", "\\t")
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
