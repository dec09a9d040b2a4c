"""Curves of how well scores separate two classes, and of how far they are probabilities."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from src.measure.judged import ScoreGroup

POINTS = 1000  # of a drawn curve, at least
GROUPS, LEAST = 10, 50  # of a calibration, and rows of each


class Separation(NamedTuple):
    """ROC and precision-recall curve over all thresholds, from the highest down; the first point is above them all.

    `average_precision` is the mean of the precision weighted by each threshold's rise in recall.
    """

    false_positives: Float[np.ndarray, " points"]  # rate, share of the negatives
    recall: Float[np.ndarray, " points"]  # share of the positives
    precision: Float[np.ndarray, " points"]
    average_precision: float


class Calibration(NamedTuple):
    """Mean score and share of positives in each of several groups of rows, by ascending score."""

    score: Float[np.ndarray, " groups"]
    share: Float[np.ndarray, " groups"]
    count: Float[np.ndarray, " groups"]

    @property
    def interval(self) -> tuple[Float[np.ndarray, " groups"], Float[np.ndarray, " groups"]]:
        """The ends of the shares' 95% intervals (Wilson 1927)."""
        z2 = 1.96**2 / self.count
        middle = (self.share + z2 / 2) / (1 + z2)
        half = np.sqrt(z2 * (self.share * (1 - self.share) + z2 / 4)) / (1 + z2)
        return np.minimum(middle - half, self.share), np.maximum(middle + half, self.share)


def separation(scores: Float[np.ndarray, " rows"], labels: Shaped[np.ndarray, " rows"]) -> Separation:
    """Returns the curves of rows of both labels (positive where not 0); equal scores are one threshold."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    positives = np.cumsum(labels[order] != 0)[ends].astype(np.float64)
    rows = ends + 1.0
    recall, precision = positives / positives[-1], positives / rows
    wrong = (rows - positives) / (rows[-1] - positives[-1])
    average = float((np.diff(recall, prepend=0.0) * precision).sum())
    return Separation(np.append(0.0, wrong), np.append(0.0, recall), np.append(precision[0], precision), average)


def calibration(scores: Float[np.ndarray, " rows"], labels: Shaped[np.ndarray, " rows"]) -> Calibration:
    """Returns the calibration of GROUPS groups of as many rows each; of fewer where they would have under LEAST."""
    order = np.argsort(scores, kind="stable")
    parts = np.array_split(order, max(1, min(GROUPS, len(order) // LEAST)))
    means = [(scores[part].mean(dtype=np.float64), (labels[part] != 0).mean(), len(part)) for part in parts]
    return Calibration(*np.array(means, np.float64).T)


def score_groups(scores: Float[np.ndarray, " rows"], labels: Shaped[np.ndarray, " rows"]) -> list[ScoreGroup]:
    """Returns the groups of `calibration` as a record keeps them."""
    groups = zip(*(part.tolist() for part in calibration(scores, labels)), strict=True)
    return [ScoreGroup(score=score, share=share, count=int(count)) for score, share, count in groups]


def log_loss(scores: Float[np.ndarray, " rows"], labels: Shaped[np.ndarray, " rows"]) -> float:
    """Returns the mean binary cross entropy in nats; probabilities are kept 1e-7 off 0 and 1."""
    shares = np.clip(scores.astype(np.float64), 1e-7, 1 - 1e-7)
    return float(-np.log(np.where(labels != 0, shares, 1 - shares)).mean())


def drawn_points(count: int) -> np.ndarray:
    """Returns which of a curve's points to draw: all of a short one, of a long one more at its beginning."""
    if count <= 2 * POINTS:
        return np.arange(count)
    evenly, densely = np.linspace(0, count - 1, POINTS), np.geomspace(1, count - 1, POINTS)
    return np.unique(np.concatenate([evenly, densely]).round().astype(int))
