"""What predictions of classes write and report, the same for images and sentences."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from src.datamodules.base import DataModule
from src.measure.classification import balanced_accuracy, macro_f1
from src.measure.judged import ClassFigures
from src.system.tables import write_csv
from src.training.confusion import shortened
from src.training.prediction import Quality

MOST_COLUMNS = 100  # classes whose probabilities are written: 1000 would make a csv of gigabytes
MOST_LINES = 10  # classes whose scores the summary has


def probability_columns(names: Sequence[str]) -> list[str]:
    """Returns the names of the columns of probabilities, `p_NAME`; none where there are too many classes."""
    return [f"p_{name}" for name in names] if len(names) <= MOST_COLUMNS else []


def probability_cells(probabilities: Float[np.ndarray, " classes"]) -> list[str]:
    """Returns the cells of one sample, which sum to 1 but for the rounding to a millionth."""
    return [f"{share:.6f}" for share in probabilities.tolist()]


def class_file(output: Path) -> Path:
    """Returns the csv of each class's scores, beside that of the predictions."""
    return output.with_name(f"{output.stem}_classes.csv")


def train_counts(datamodule: DataModule, names: Sequence[str]) -> Int64[np.ndarray, " classes"] | None:
    """Returns the samples of each class in the training split, as far as the report of the reading has them."""
    counts = datamodule.reading.classes.get("train") if datamodule.reading else None
    if not counts or not set(counts) <= set(names):
        return None
    return np.array([counts.get(name, 0) for name in names], np.int64)


def majority(
    true: Shaped[np.ndarray, " classes"], names: Sequence[str], trained: Int64[np.ndarray, " classes"] | None
) -> tuple[float, str]:
    """Returns the accuracy of always naming the most frequent class, and that in words.

    Args:
        true: samples of each class.
        trained: those of the training split, which chooses the class; `true` does where it is not known.
    """
    chosen = int((true if trained is None else trained).argmax())
    of = "the judged ones" if trained is None else "the training split"
    return float(true[chosen] / true.sum()), f"always naming {shortened(names[chosen])}, the most frequent of {of}"


def judge_classes(
    scores: Sequence[ClassFigures],
    unit: str,
    accuracy: Quality,
    trained: Int64[np.ndarray, " classes"] | None,
    output: Path,
) -> list[Quality]:
    """Returns the accuracy and what it hides: the majority baseline, balanced accuracy, macro F1, and of a few classes
    recall, precision and F1. Writes those of all classes to `output`, a csv.

    Args:
        scores: see `src.measure.classification.scores_of`.
        unit: what is counted, such as images.
        trained: samples of each class of the training split.
    """
    write_csv(output, ["class", unit, "named", "right", "precision", "recall", "f1"], _lines(scores))
    names = [score.name for score in scores]
    baseline, words = majority(np.array([score.count for score in scores]), names, trained)
    quality = [
        accuracy,
        Quality("majority class", 100 * baseline, "%", f"right, {words}"),
        Quality("balanced accuracy", _percent(balanced_accuracy(scores)), "%", "mean recall of the classes that occur"),
        Quality("macro F1", _percent(macro_f1(scores)), "%", "mean F1 of the classes that occur or were named"),
    ]
    for name, score in zip(map(shortened, names), scores, strict=True) if len(names) <= MOST_LINES else ():
        of_class, of_named = (
            f"{score.right:,} of {score.count:,} {unit}",
            f"{score.right:,} of {score.named:,} named so",
        )
        quality += [
            Quality(f"recall of {name}", _percent(score.recall), "%", of_class),
            Quality(f"precision of {name}", _percent(score.precision), "%", of_named),
            Quality(f"F1 of {name}", _percent(score.f1), "%"),
        ]
    return quality


def _lines(scores: Sequence[ClassFigures]) -> Iterable[list[Any]]:
    for score in scores:
        shares = (score.precision, score.recall, score.f1)
        written = ["" if share is None else f"{share:.6f}" for share in shares]
        yield [score.name, score.count, score.named, score.right, *written]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
