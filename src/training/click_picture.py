"""The picture of how well predicted clicks are separated and calibrated."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from src.measure.curves import Separation, calibration, drawn_points
from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes

DASHED = (0, (4, 3))


def clicks_picture(
    scores: Float[np.ndarray, " rows"],
    labels: Float[np.ndarray, " rows"],
    curves: Separation,
    area: float,
    of: str,
    path: Path,
) -> None:
    """Writes the ROC curve, the precision-recall curve and the calibration of predicted clicks.

    Args:
        area: under the ROC curve.
        of: what the rows are, in words.

    Raises UserError if the file cannot be written.
    """
    picture = new_picture(11, 4)
    roc, precision, reliable = picture.subplots(1, 3)
    share, drawn = float((labels != 0).mean()), drawn_points(len(curves.recall))
    roc.plot(curves.false_positives[drawn], curves.recall[drawn], color=CURVES[0], linewidth=1.6)
    roc.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=DASHED, label="random order")
    roc.set_title(f"AUC {area:.4f}", loc="left", size=10, weight="bold", color=INK)
    roc.set_xlabel("share of the rows without a click above a threshold", size=8, color=FAINT)
    roc.set_ylabel("share of the clicks above it (ROC curve)", size=8, color=FAINT)

    precision.step(curves.recall[drawn], curves.precision[drawn], where="pre", color=CURVES[0], linewidth=1.6)
    precision.axhline(share, color=FAINT, linewidth=0.8, linestyle=DASHED, label=f"random order, {share:.3f}")
    title = f"Average precision {curves.average_precision:.4f}"
    precision.set_title(title, loc="left", size=10, weight="bold", color=INK)
    precision.set_xlabel("recall: share of the clicks above a threshold", size=8, color=FAINT)
    precision.set_ylabel("precision: share of clicks above it", size=8, color=FAINT)
    for axes in (roc, precision):
        axes.set(xlim=(0, 1), ylim=(0, 1.01))

    groups = calibration(scores, labels)
    low, high = groups.interval
    top = min(1.0, 1.05 * float(max(high.max(), groups.score.max())))
    reliable.plot([0, top], [0, top], color=FAINT, linewidth=0.8, linestyle=DASHED, label="calibrated")
    reliable.errorbar(
        groups.score, groups.share, (groups.share - low, high - groups.share), color=CURVES[0], linewidth=1.2,
        marker="o", markersize=4, label=f"{groups.count.mean():,.0f} rows each, 95% interval",
    )  # fmt: skip
    title = f"Mean predicted {scores.mean(dtype=np.float64):.3f}, clicked {share:.3f}"
    reliable.set_title(title, loc="left", size=10, weight="bold", color=INK)
    reliable.set_xlabel("mean predicted probability of a group", size=8, color=FAINT)
    reliable.set_ylabel("share of clicks in it (calibration)", size=8, color=FAINT)
    reliable.set(xlim=(0, top), ylim=(0, 1.01 * top))
    for axes, corner in zip((roc, precision, reliable), ("lower right", "upper right", "upper left"), strict=True):
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc=corner)
        style_axes(axes, grid="both")
    picture.suptitle(of, x=0.01, ha="left", size=9, color=FAINT)
    save_picture(picture, path)
