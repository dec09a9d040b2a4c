"""How well samples are classified, from counts by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor


@dataclass(frozen=True)
class ClassScores:
    """How well one class is recognised. A share of nothing is None.

    Attributes:
        count: samples of the class.
        named: samples that were given the class.
        right: samples of the class that were given it.
    """

    count: int
    named: int
    right: int

    @property
    def recall(self) -> float | None:
        """Share of the samples of the class that were given it; None where there are none."""
        return self.right / self.count if self.count else None

    @property
    def precision(self) -> float | None:
        """Share of the samples with this answer that are of the class; None where none has it."""
        return self.right / self.named if self.named else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None for a class that neither occurs nor was given."""
        return 2 * self.right / (self.count + self.named) if self.count + self.named else None


def scores_of(counts: Int64[np.ndarray, "classes classes"]) -> list[ClassScores]:
    """Returns the scores of each class; `counts` has a row for each true class, a column for each given one."""
    return from_tally(np.stack([counts.diagonal(), counts.sum(1), counts.sum(0)]))


def from_tally(tally: Shaped[np.ndarray, "3 classes"]) -> list[ClassScores]:
    """Returns the scores of each class from the sums of `tally` over batches and ranks."""
    return [ClassScores(int(count), int(named), int(right)) for right, count, named in tally.T]


def tally(
    given: Int64[Tensor, " samples"], true: Int64[Tensor, " samples"], right: Bool[Tensor, " samples"], classes: int
) -> Float64[Tensor, "3 classes"]:
    """Returns for each class how many samples of it are right, how many there are, and how many were given it.

    The device is not waited for, and the order of samples does not matter. Samples of an unknown class (below 0) do not
    count.
    """
    numbers = torch.arange(classes, device=true.device)
    is_true = true[:, None] == numbers
    is_given = (given[:, None] == numbers) & (true[:, None] >= 0)
    return torch.stack([(is_true & right[:, None]).sum(0), is_true.sum(0), is_given.sum(0)]).double()


def balanced_accuracy(scores: Sequence[ClassScores]) -> float | None:
    """Returns the mean recall of the classes that occur, as scikit-learn does; None without samples."""
    return _mean([score.recall for score in scores])


def macro_f1(scores: Sequence[ClassScores]) -> float | None:
    """Returns the mean F1 of the classes that occur or were given, as scikit-learn and torchmetrics do."""
    return _mean([score.f1 for score in scores])


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
