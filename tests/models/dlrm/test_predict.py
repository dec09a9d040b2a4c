"""Predictions of DLRM: the csv, the AUC, the published benchmark, and errors."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from src.batches.clicks import Clicks
from src.errors import UserError
from src.models.dlrm.network import DLRM
from src.models.dlrm.task import DLRMTask
from src.report.record import Record, read_record
from src.run import train
from tests.support.composing import composed, prediction_of
from tests.support.tiny_dlrm import CARDINALITIES, ON_DEVICE, ON_DISK, tiny_dlrm, tiny_prediction

pytestmark = pytest.mark.slow

ROWS = 100  # of the test split


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with clicks on disk and a checkpoint trained on them."""
    home = tmp_path_factory.mktemp("dlrm")
    train(tiny_dlrm(home, "model.task.tables=null", data=ON_DISK))
    return home


@pytest.fixture
def predicted(home: Path, tmp_path: Path) -> Callable[..., Record]:
    """Predicts with the checkpoint into `tmp_path`."""

    def predicted(*overrides: str, **options: Any) -> Record:
        checkpoint = f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}"
        return prediction_of(tiny_prediction(home, f"output_dir={tmp_path}", checkpoint, *overrides, **options))

    return predicted


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def expected_rows(home: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the checkpoint's probabilities of the test rows, from one batch, and their labels."""
    saved = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    task: DLRMTask = instantiate(saved["model_config"]["task"])
    task.load_state_dict(saved["state_dict"])
    data: Any = instantiate(composed("predict", *tiny_prediction(home)).datamodule)
    data.setup("predict")
    (batch,) = data.loader("test", batch_size=ROWS)
    with torch.no_grad():
        return task.network(batch.clicks()).sigmoid().numpy(), batch.clicks().labels.numpy()


def test_the_csv_has_every_row_in_order(home: Path, predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted()
    rows = rows_of(tmp_path / "predictions.csv")
    probabilities, labels = expected_rows(home)
    assert list(rows[0]) == ["row", "probability", "label"]
    assert [int(row["row"]) for row in rows] == list(range(ROWS))
    assert [float(row["probability"]) for row in rows] == pytest.approx(probabilities.tolist(), abs=2e-6)
    assert [int(row["label"]) for row in rows] == labels.tolist()
    assert record.samples == ROWS


def test_the_auc_equals_that_of_the_evaluation(home: Path, predicted: Callable[..., Record], tmp_path: Path) -> None:
    evaluated = read_record(home / "run").final_metric
    record = predicted("datamodule.predict=test")
    metric = record.final_metric
    assert record.quality and record.quality[0].of.endswith(f"{record.samples} rows of the test split")
    assert metric is not None and evaluated is not None and metric.value is not None
    assert [figure.name for figure in record.quality] == ["AUC", "AP", "log loss", "base rate", "NE"]
    loss, base, ratio = (figure.value for figure in record.quality[2:])
    clicks = expected_rows(home)[1].mean()
    assert base == pytest.approx(-clicks * np.log(clicks) - (1 - clicks) * np.log(1 - clicks), rel=1e-6)
    assert loss is not None and base is not None and ratio == pytest.approx(loss / base)
    drawn = (tmp_path / "predictions.svg").read_text()
    assert f"AUC {metric.value:.4f}" in drawn and f"Average precision {record.quality[1].value:.4f}" in drawn
    assert (metric.name, metric.value, metric.target) == ("auc", evaluated.value, evaluated.target)


def test_split_and_number_of_rows_can_be_chosen(predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted("datamodule.predict=train", "num_samples=20", f"output={tmp_path / 'own' / 'clicks.csv'}")
    assert len(rows_of(tmp_path / "own" / "clicks.csv")) == 20
    assert record.samples == 20


def test_without_a_number_all_rows_are_scored(predicted: Callable[..., Record], tmp_path: Path) -> None:
    predicted("datamodule.predict=train", "num_samples=null")
    assert len(rows_of(tmp_path / "predictions.csv")) == 512


def test_rows_of_one_label_have_no_auc(predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted("num_samples=1", "batch_size=1")
    assert len(rows_of(tmp_path / "predictions.csv")) == 1
    assert record.final_metric is None and not (tmp_path / "predictions.png").exists()


def test_the_record_has_both_clocks(predicted: Callable[..., Record]) -> None:
    record = predicted("benchmark=true", "model.predict.repeats=null")
    assert record.latency_s is not None and record.latency_s.mean is not None and record.throughput is not None
    assert record.throughput == pytest.approx(ROWS / (7 * record.latency_s.mean))
    assert record.with_loading is not None and record.with_loading.throughput is not None
    assert record.with_loading.throughput < record.throughput


def test_the_benchmark_repeats_one_batch_and_writes_nothing(
    predicted: Callable[..., Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    forward = DLRM.forward

    def counting(self: DLRM, clicks: Clicks) -> Tensor:
        seen.append(len(clicks.labels))
        return forward(self, clicks)

    monkeypatch.setattr(DLRM, "forward", counting)
    record = predicted("benchmark=true", "model.predict.repeats=10", "batch_size=32", "warmup_batches=2")
    assert seen == [32] * (2 + 10)
    assert record.samples == 320 and record.final_metric is None and record.with_loading is None
    assert record.latency_s is not None and record.latency_s.p50 is not None
    assert not (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16)])
def test_without_a_checkpoint_the_tables_come_from_the_data(
    precision: str, dtype: torch.dtype, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[int], torch.dtype]] = []
    forward = DLRM.forward

    def looking(self: DLRM, clicks: Clicks) -> Tensor:
        seen.append(([table.cardinality for table in self.tables], self.dense_parameters()[0].dtype))
        return forward(self, clicks)

    monkeypatch.setattr(DLRM, "forward", looking)
    record = prediction_of(tiny_prediction(home, f"output_dir={tmp_path}", "num_samples=16", f"precision={precision}"))
    assert record.status == "done"
    assert seen[-1] == (CARDINALITIES, dtype)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["output=clicks.txt"], "output=clicks.txt: predictions are written as csv; give a name that ends in .csv"),
        (["datamodule.predict=held_out"], "datamodule.predict=held_out: there is no such split; choose from "),
        (["model=dlrm_dcnv2"], "is a checkpoint of dlrm; leave out model=dlrm_dcnv2"),
    ],
)
def test_bad_options_are_errors(overrides: list[str], words: str, predicted: Callable[..., Record]) -> None:
    with pytest.raises(UserError, match=words) as refused:
        predicted(*overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sizes", "hotness", "words"),
    [
        ([50, 3, 1300, 7], [1, 1, 1, 1], "cat_2.bin has 1300 ids, 1 a row, but table 2 of the network is made for "),
        (CARDINALITIES, [1, 1, 1, 2], "cat_3.bin has 7 ids, 2 a row, but table 3 of the network is made for "),
        ([50, 3, 1200], [1, 1, 1], "the data has 3 categorical and 13 numerical features, the network is made "),
    ],
)
def test_clicks_of_other_tables_are_an_error(
    sizes: list[int], hotness: list[int], words: str, predicted: Callable[..., Record]
) -> None:
    others = f"datamodule.cardinalities={sizes}", f"datamodule.hotness={hotness}"
    with pytest.raises(UserError, match=words):
        predicted(*others, data=ON_DEVICE)
