"""What predictions of classes write and report: hostile names, many classes, the baseline."""

import csv
from pathlib import Path

import numpy as np
import pytest

from src.datamodules.base import DataModule
from src.measure.classification import scores_of
from src.measure.reading import Reading
from src.training.classification import judge_classes, majority, train_counts
from src.training.image_classification import Classified, write_classes
from src.training.prediction import Quality
from src.training.sentence_prediction import write_labels

NAMES = ["=1+1", "+49", "-x", "@SUM(A1)", "a,b", 'say "no"', "two\nlines", "日本語", "\u202egnp", "plain"]
SAFE = ["'=1+1", "+49", "'-x", "'@SUM(A1)", *NAMES[4:]]  # a number is no formula
ACCURACY = Quality("accuracy", 50.0, "%", "right, 4 images")


def table(file: Path) -> list[list[str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.reader(lines))


def test_hostile_names_of_classes_stay_text_in_both_kinds_of_csv(tmp_path: Path) -> None:
    shares = np.full((10, 10), 0.05, np.float32) + 0.5 * np.eye(10, dtype=np.float32)
    numbers = np.arange(10)
    write_classes(Classified(numbers, shares.max(1), numbers, shares), None, NAMES, tmp_path / "images.csv")
    write_labels(["text"] * 10, shares, numbers, tmp_path / "sentences.csv", NAMES)
    for file, label, true in (("images.csv", 1, 3), ("sentences.csv", 1, 3)):
        head, *rows = table(tmp_path / file)
        assert head[4:] == [f"p_{name}" for name in NAMES]
        assert [row[label] for row in rows] == [row[true] for row in rows] == SAFE
        assert np.array([row[4:] for row in rows], float).sum(1) == pytest.approx(1)
    judge_classes(scores_of(np.eye(10, dtype=np.int64), NAMES), "images", ACCURACY, None, tmp_path / "classes.csv")
    assert [row[0] for row in table(tmp_path / "classes.csv")[1:]] == SAFE


def test_probabilities_of_more_than_a_hundred_classes_are_left_out(tmp_path: Path) -> None:
    names = [str(number) for number in range(101)]
    write_labels(["text"], np.eye(1, 101), np.array([0]), tmp_path / "many.csv", names)
    assert table(tmp_path / "many.csv") == [
        ["sentence", "label", "probability", "true"], ["text", "0", "1.000000", "0"]
    ]  # fmt: skip
    quality = judge_classes(
        scores_of(np.eye(101, dtype=np.int64), names), "images", ACCURACY, None, tmp_path / "classes.csv"
    )
    assert len(quality) == 4 and len(table(tmp_path / "classes.csv")) == 102


def test_a_class_that_does_not_occur_has_no_recall(tmp_path: Path) -> None:
    counts = np.array([[2, 1], [0, 0]])
    quality = judge_classes(scores_of(counts, ["cat", "dog"]), "images", ACCURACY, None, tmp_path / "classes.csv")
    figures = {figure.name: figure for figure in quality}
    assert figures["recall of dog"].value is None and figures["precision of dog"].value == 0
    assert figures["recall of cat"].of == "2 of 3 images" and figures["precision of cat"].of == "2 of 2 named so"
    assert table(tmp_path / "classes.csv")[2] == ["dog", "0", "1", "0", "0.000000", "", "0.000000"]


def test_the_baseline_names_the_most_frequent_class_of_the_training() -> None:
    true, names = np.array([1, 3]), ["cat", "dog"]
    assert majority(true, names, None) == (0.75, "always naming dog, the most frequent of the judged ones")
    trained = np.array([9, 4])
    assert majority(true, names, trained) == (0.25, "always naming cat, the most frequent of the training split")


def test_the_counts_of_the_training_are_those_of_the_reading() -> None:
    data = DataModule("own")
    assert train_counts(data, ["cat", "dog"]) is None
    data.reading = Reading("a.csv", "rows", classes={"train": {"dog": 4}, "val": {"cat": 1}})
    counts = train_counts(data, ["cat", "dog"])
    assert counts is not None and counts.tolist() == [0, 4]
    assert train_counts(data, ["cat", "cow"]) is None
