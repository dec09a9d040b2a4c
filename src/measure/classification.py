"""How well samples are classified, from counts by class."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from src.measure.judged import ClassFigures


def scores_of(counts: Int64[np.ndarray, "classes classes"], names: Sequence[str]) -> list[ClassFigures]:
    """Returns the figures of each class; `counts` has a row for each true class, a column for each given one."""
    return from_tally(np.stack([counts.diagonal(), counts.sum(1), counts.sum(0)]), names)


def from_tally(tally: Shaped[np.ndarray, "3 classes"], names: Sequence[str]) -> list[ClassFigures]:
    """Returns the figures of each class from the sums of `tally` over batches and ranks."""
    return [
        ClassFigures(name=name, right=int(right), count=int(count), named=int(named))
        for name, (right, count, named) in zip(names, tally.T, strict=True)
    ]


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


def balanced_accuracy(scores: Sequence[ClassFigures]) -> float | None:
    """Returns the mean recall of the classes that occur, as scikit-learn does; None without samples."""
    return _mean([score.recall for score in scores])


def macro_f1(scores: Sequence[ClassFigures]) -> float | None:
    """Returns the mean F1 of the classes that occur or were given, as scikit-learn and torchmetrics do."""
    return _mean([score.f1 for score in scores])


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
