"""Classes, calibration and other figures of quality in a comparison, from records that hold them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from src.measure.curves import score_groups
from src.measure.judged import ClassFigures, listed
from src.report.cli import main
from src.report.compare.build import compare
from src.report.compare.hindrances import verdict
from src.report.compare.judged import calibration_spec, class_table, quality_table
from src.report.compare.structure import Comparison
from src.report.load import load
from src.report.record import Quality, Record, read_record, write_record

CAT = ClassFigures(name="cat", count=4, named=5, right=3)
DOG = ClassFigures(name="dog", count=6, named=5, right=4)


@pytest.fixture
def compared(tmp_path: Path, trained: Record) -> Comparison:
    """Two seeds of one learning rate, of which the second finds every cat, and one run of another."""
    better = replace(CAT, right=4)
    for name, lr, classes in (("a", 1, [CAT, DOG]), ("b", 1, [better, DOG]), ("c", 2, [CAT, DOG])):
        record = replace(trained, classes=classes, config={"hp": {"lr": lr}, "seed": ord(name)})
        write_record(record, tmp_path / name / "result.json")
        assert read_record(tmp_path / name) == record
    return compare(load([tmp_path / name for name in "abc"]))


def test_each_class_has_its_figures_and_their_means(compared: Comparison) -> None:
    head, cat, dog, mean = class_table(compared)
    parts = [f"{part}, lr={lr}" for lr in (1, 2) for part in ("recall", "precision", "F1")]
    assert head == ["class", "samples", *parts]
    assert cat == ["cat", "4", "0.88 ± 0.18", "0.70 ± 0.14", "0.78 ± 0.16", "0.75", "0.6", "0.6667"]
    assert dog[0] == "dog" and dog[5:] == ["0.6667", "0.8", "0.7273"]
    assert mean[0] == "mean of the classes" and mean[5] == "0.7083"  # balanced accuracy: (3/4 + 4/6) / 2


def test_groups_that_were_evaluated_on_other_samples_are_not_comparable(trained: Record, tmp_path: Path) -> None:
    for name, lr, count in (("a", 1, 4), ("b", 2, 4), ("c", 3, 1_000)):
        record = replace(trained, classes=[replace(CAT, count=count), DOG], config={"hp": {"lr": lr}})
        write_record(record, tmp_path / name / "result.json")
    same, other = (compare(load([tmp_path / name for name in names])) for names in ("ab", "abc"))
    assert verdict(same).startswith("Comparable: hp.lr alone differs")
    assert verdict(other) == "Not comparable in the metric: evaluated on 10 to 1,006 samples."


def test_the_page_has_the_classes_folded(compared: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    runs = [str(tmp_path / name) for name in "abc"]
    assert main(["compare", *runs, "--format", "html", "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Classes</h2>" in page and "0.88 ± 0.18" in page and "Calibration" not in page


def test_predictions_have_quality_and_a_reliability_diagram(predicted: Record, tmp_path: Path) -> None:
    scores = np.linspace(0.0, 1.0, 200, dtype=np.float32)
    groups = score_groups(scores, scores > 0.5)
    quality = [Quality(name="accuracy", value=90.0, unit="%", group="val"), Quality(name="recall of cat", value=75.0)]
    write_record(replace(predicted, quality=quality, calibration=groups), tmp_path / "result.json")
    comparison = compare(load([tmp_path]))
    assert quality_table(comparison)[1:] == [["accuracy, %, val", "90"]]
    spec = calibration_spec(comparison)
    assert spec is not None
    points = spec["data"]["values"]
    assert [point["samples"] for point in points] == [50] * 4 and [point["y"] for point in points] == [0, 0, 1, 1]
    assert points[0]["x"] == pytest.approx(scores[:50].mean())


def test_a_thousand_classes_are_not_listed() -> None:
    assert listed([CAT] * 101) is None and listed([]) is None
    assert listed([CAT]) == [{"name": "cat", "count": 4, "named": 5, "right": 3}]
