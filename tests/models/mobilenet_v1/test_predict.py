"""Predictions of MobileNetV1: the csv, the accuracy, the benchmark, and errors."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from src.errors import UserError
from src.models.mobilenet_v1.task import MobileNetV1Task
from src.report.record import Record, read_record
from src.run import train
from tests.support.composing import composed, prediction_of
from tests.support.tiny_mobilenet import CLASSES, encoded, picture, tiny_mobilenet, tiny_prediction, write_folders

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images and a checkpoint trained on them."""
    home = tmp_path_factory.mktemp("mobilenet")
    train(tiny_mobilenet(home, "fit.max_epochs=2", data=write_folders(home)))
    return home


@pytest.fixture
def predicted(home: Path, tmp_path: Path) -> Callable[..., Record]:
    """Predicts with the checkpoint into `tmp_path`."""

    def predicted(*overrides: str, data: str = "image_folder", folder: Path = home / "images") -> Record:
        checkpoint = f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}"
        where = f"datamodule={data}", f"datamodule.data_dir={folder}", "datamodule.threads=2"
        return prediction_of(tiny_prediction(home, *where, f"output_dir={tmp_path}", checkpoint, *overrides))

    return predicted


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def expected(home: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the most probable class of each validation image and its probability, from one batch."""
    saved = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    task: MobileNetV1Task = instantiate(saved["model_config"]["task"]).eval()
    task.load_state_dict(saved["state_dict"])
    config = composed(
        "predict", *tiny_prediction(home, "datamodule=image_folder", f"datamodule.data_dir={home / 'images'}")
    )
    data: Any = instantiate(config.datamodule, num_classes=3, image_size=32)
    data.setup("predict")
    (batch,) = data.loader("val", batch_size=15)
    with torch.no_grad():
        probabilities, classes = task.logits(batch).softmax(1).max(1)
    return classes.numpy(), probabilities.numpy()


def test_the_csv_has_every_image_in_order(home: Path, predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted()
    rows, (classes, probabilities) = rows_of(tmp_path / "predictions.csv"), expected(home)
    assert list(rows[0]) == ["file", "label", "probability", "true_label", *(f"p_{name}" for name in CLASSES)]
    for row in rows:
        shares = {name: float(row[f"p_{name}"]) for name in CLASSES}
        assert sum(shares.values()) == pytest.approx(1, abs=3e-6)
        assert shares[row["label"]] == max(shares.values())
    assert [row["file"] for row in rows] == [f"{name}/{n:03}.JPEG" for name in CLASSES for n in range(5)]
    assert [row["label"] for row in rows] == [CLASSES[label] for label in classes]
    assert [float(row["probability"]) for row in rows] == pytest.approx(probabilities.tolist(), abs=2e-6)
    assert [row["true_label"] for row in rows] == [name for name in CLASSES for _ in range(5)]
    assert record.samples == 15 and record.unit == "images"


def test_the_accuracy_equals_that_of_the_evaluation(
    home: Path, predicted: Callable[..., Record], tmp_path: Path
) -> None:
    record = predicted()
    assert f"{record.quality[0].value / 100:.2%} of 15 images right" in (tmp_path / "predictions.svg").read_text()  # type: ignore[index,operator]
    evaluated, metric = read_record(home / "run").final_metric, record.final_metric
    assert record.quality and record.quality[0].of == "right, 15 images of the val split"
    assert metric is not None and evaluated is not None
    assert (metric.name, metric.value) == ("top1", evaluated.value)
    figures = {figure.name: figure.value for figure in record.quality}
    last = read_record(home / "run").history[-1]
    assert figures["balanced accuracy"] == pytest.approx(100 * last["balanced_acc"])
    assert figures["macro F1"] == pytest.approx(100 * last["macro_f1"])
    assert figures["majority class"] == pytest.approx(100 / 3)
    assert [name for name in figures if name.startswith("recall")] == [f"recall of {name}" for name in CLASSES]
    rows = rows_of(tmp_path / "predictions_classes.csv")
    assert [row["class"] for row in rows] == list(CLASSES) and {row["images"] for row in rows} == {"5"}


def test_images_without_labels_are_classified(home: Path, predicted: Callable[..., Record], tmp_path: Path) -> None:
    """From a folder of files; the last batch is smaller."""
    record = predicted("batch_size=2", data="image_files", folder=home / "images" / "val" / "bee")
    rows, (classes, _) = rows_of(tmp_path / "predictions.csv"), expected(home)
    assert [row["file"] for row in rows] == [f"{n:03}.JPEG" for n in range(5)]
    assert [row["label"] for row in rows] == [CLASSES[label] for label in classes[5:10]]
    assert {row["true_label"] for row in rows} == {""}
    assert record.final_metric is None and record.samples == 5 and not (tmp_path / "predictions.png").exists()


def test_an_image_that_fails_later_has_an_empty_class(
    home: Path, predicted: Callable[..., Record], tmp_path: Path
) -> None:
    """Damage within a file, which its beginning and end do not show."""
    photo = bytearray(encoded(picture(600, 800)))
    middle = len(photo) // 2
    photo[middle : middle + 200] = bytes(200)
    shutil.copytree(home / "images", tmp_path / "images")
    (tmp_path / "images" / "val" / "bee" / "001.JPEG").write_bytes(photo)
    record = predicted(folder=tmp_path / "images")
    rows = rows_of(tmp_path / "predictions.csv")
    assert [row["file"] for row in rows if not row["label"]] == ["bee/001.JPEG"] and len(rows) == 15
    assert not rows[6]["probability"] and all(row["probability"] for row in rows if row["label"])
    assert record.quality and record.quality[0].of.startswith("right, 14 images")
    assert record.reading is not None and record.reading.dropped[0].examples == ["val/bee/001.JPEG"]


def test_a_moved_folder_is_named_with_its_key(tmp_path: Path) -> None:
    """Where the training's folder is gone, none is made up."""
    train(tiny_mobilenet(tmp_path, "fit.max_steps=1", data=write_folders(tmp_path, 4, 2)))
    (tmp_path / "images").rename(tmp_path / "moved")
    checkpoint = f"ckpt_path={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}"
    here = [text for text in tiny_prediction(tmp_path, checkpoint) if not text.startswith("data_root=")]
    with pytest.raises(UserError) as raised:
        prediction_of(here)
    assert f"{tmp_path / 'images'}, which is not here: give datamodule.data_dir=FOLDER" in str(raised.value)
    prediction_of([*here, f"datamodule.data_dir={tmp_path / 'moved'}"])


def test_number_of_images_and_output_can_be_chosen(predicted: Callable[..., Record], tmp_path: Path) -> None:
    predicted("num_samples=3", f"output={tmp_path / 'mine.csv'}")
    assert len(rows_of(tmp_path / "mine.csv")) == 3


def test_the_split_can_be_chosen(predicted: Callable[..., Record], tmp_path: Path) -> None:
    predicted("datamodule.predict=train")
    assert len(rows_of(tmp_path / "predictions.csv")) == 36


def test_the_record_has_latencies_with_and_without_decoding(predicted: Callable[..., Record]) -> None:
    record = predicted("benchmark=true", "model.predict.repeats=null")
    assert (
        record.latency_s is not None and record.with_loading is not None and record.with_loading.latency_s is not None
    )
    assert 0 < record.latency_s.p50 <= record.with_loading.latency_s.p50  # type: ignore[operator]


def test_the_benchmark_times_one_batch(predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted("benchmark=true", "model.predict.repeats=7", "batch_size=3")
    assert record.samples == 21 and record.throughput is not None
    assert not (tmp_path / "predictions.csv").exists()


def test_synthetic_images_need_no_checkpoint(tmp_path: Path) -> None:
    """Random weights are enough for timing; images without files are numbered."""
    sizes = "datamodule.num_classes=3", "datamodule.image_size=32", "model.task.network.width_multiplier=0.125"
    record = prediction_of(tiny_prediction(tmp_path, "datamodule=image_synthetic", *sizes, "num_samples=6"))
    rows = rows_of(tmp_path / "predicted" / "predictions.csv")
    assert [row["file"] for row in rows] == [str(number) for number in range(6)]
    assert record.samples == 6


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("output=labels.txt",), "give a name that ends in .csv"),
        (("datamodule.predict=test",), "choose from train, val"),
    ],
)
def test_bad_options_are_errors(overrides: tuple[str, ...], message: str, predicted: Callable[..., Record]) -> None:
    with pytest.raises(UserError, match=message):
        predicted(*overrides)


def test_data_without_images_is_an_error(home: Path, tmp_path: Path) -> None:
    checkpoint = f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}"
    with pytest.raises(UserError, match="MobileNetV1 needs images"):
        prediction_of(tiny_prediction(home, "datamodule=criteo_resident", f"output_dir={tmp_path}", checkpoint))
