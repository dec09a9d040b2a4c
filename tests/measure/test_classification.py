"""Figures of a classification against those of torchmetrics, and classes that do not occur."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
)

from src.measure.classification import balanced_accuracy, from_tally, macro_f1, scores_of, tally
from src.training.confusion import confusion

CLASSES = 7


@pytest.fixture(params=range(4))
def answers(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """Given and true classes: all; 2 absent but given; 2 and 5 neither there nor given; 2 never given."""
    torch.manual_seed(request.param)
    given, true = torch.randint(CLASSES, (90,)), torch.randint(CLASSES, (90,))
    if request.param in (1, 2):
        true[true == 2] = 0
    if request.param in (2, 3):
        given[given == 2] = 1
    if request.param == 2:
        given[given == 5], true[true == 5] = 1, 3
    return given, true


def names(classes: int) -> list[str]:
    return [f"class {number}" for number in range(classes)]


def test_figures_are_those_of_torchmetrics(answers: tuple[torch.Tensor, torch.Tensor]) -> None:
    given, true = answers
    scores = scores_of(confusion(given.numpy(), true.numpy(), CLASSES), names(CLASSES))
    for name, function in (
        ("recall", multiclass_recall),
        ("precision", multiclass_precision),
        ("f1", multiclass_f1_score),
    ):
        values = [getattr(score, name) for score in scores]
        expected = function(given, true, CLASSES, average=None, zero_division=0).tolist()
        assert [value or 0.0 for value in values] == pytest.approx(expected)
    assert macro_f1(scores) == pytest.approx(float(multiclass_f1_score(given, true, CLASSES, average="macro")))
    recall = multiclass_recall(given, true, CLASSES, average=None)
    assert balanced_accuracy(scores) == pytest.approx(float(recall[true.bincount(minlength=CLASSES) > 0].mean()))


def test_a_share_of_nothing_is_unknown_not_0() -> None:
    counts = np.array([[3, 1, 0, 0], [0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])  # 1 is absent, 2 never given, 3 neither
    scores = scores_of(counts, names(len(counts)))
    assert [score.recall for score in scores] == [0.75, None, 0.0, None]
    assert [score.precision for score in scores] == [0.6, 0.0, None, None]
    assert [score.f1 for score in scores] == [pytest.approx(2 / 3), 0.0, 0.0, None]
    assert balanced_accuracy(scores) == 0.375 and macro_f1(scores) == pytest.approx(2 / 9)
    nothing = scores_of(np.zeros((2, 2), np.int64), names(2))
    assert balanced_accuracy(nothing) is None and macro_f1(nothing) is None


def test_one_true_class_among_many_given_ones() -> None:
    """Balanced accuracy is that of the class that occurs; macro recall would be 0.0001."""
    given = np.arange(100)
    assert balanced_accuracy(scores_of(confusion(given, np.zeros(100, np.int64), 100), names(100))) == pytest.approx(
        0.01
    )


def test_the_sum_of_batches_is_the_whole(answers: tuple[torch.Tensor, torch.Tensor]) -> None:
    given, true = answers
    parts = [tally(*pair, pair[0] == pair[1], CLASSES) for pair in zip(given.split(13), true.split(13), strict=True)]
    whole = scores_of(confusion(given.numpy(), true.numpy(), CLASSES), names(CLASSES))
    assert from_tally(torch.stack(parts).sum(0).numpy(), names(CLASSES)) == whole
