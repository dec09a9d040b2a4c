"""The confusion matrix: its counts, the classes that are shown, and its picture."""

from pathlib import Path

import numpy as np
import pytest

from src.training.confusion import MOST, confusion, confusion_picture, most_confused


def test_confusion_counts_true_and_predicted_labels() -> None:
    labels, true = np.array([0, 1, 1, 1, 0, 0, 1]), np.array([0, 0, 1, 1, 0, 1, 0])
    assert confusion(labels, true, 2).tolist() == [[2, 2], [1, 2]]


def test_of_many_classes_those_of_the_most_frequent_confusions_are_shown() -> None:
    counts = np.diag(np.full(100, 1000))
    counts[7, 93], counts[50, 2] = 5, 4
    shown = most_confused(counts)
    assert len(shown) == MOST and {2, 7, 50, 93} <= set(shown.tolist())
    assert most_confused(counts[:10, :10]).tolist() == list(range(10))


@pytest.mark.parametrize("classes", [2, 10, 300])
@pytest.mark.slow
def test_a_picture_has_the_names_and_the_share_that_is_right(classes: int, tmp_path: Path) -> None:
    counts = np.diag(np.full(classes, 3)) + np.eye(classes, k=1, dtype=np.int64)
    names = [f"class {number} with a name that is quite long" for number in range(classes)]
    confusion_picture(counts, names, "images", tmp_path / "confusion.png")
    text = (tmp_path / "confusion.svg").read_text()
    assert f"{counts.trace() / counts.sum():.2%} of {counts.sum():,} images right" in text
    assert text.count("class 1 with a name t…") == 2
    assert (f"the {MOST} most confused of {classes:,} classes" in text) == (classes > MOST)
    assert (tmp_path / "confusion.png").stat().st_size > 5000


def test_no_samples_have_a_picture(tmp_path: Path) -> None:
    confusion_picture(np.zeros((2, 2), np.int64), ["no", "yes"], "images", tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").exists()
