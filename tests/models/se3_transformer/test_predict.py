"""Prediction with the SE(3)-Transformer: the csv, the picture and the measured times."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.errors import UserError
from src.models.se3_transformer.plots import parity_picture
from src.models.se3_transformer.predict import Quantity, errors_of
from src.models.se3_transformer.task import SE3TransformerTask
from src.predict import predict
from src.report.record import Record, read_record
from src.run import train
from src.training.task import FinalMetric
from tests.support.composing import composed, prediction_of
from tests.support.tiny_se3 import tiny_prediction, tiny_se3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a trained checkpoint in run/checkpoints."""
    home = tmp_path_factory.mktemp("se3")
    train(tiny_se3(home, "fit.max_epochs=2"))
    return home


@pytest.fixture
def predicted(home: Path, tmp_path: Path) -> Callable[..., Record]:
    """Returns a function that predicts with the checkpoint into `tmp_path`."""

    def predicted(*overrides: str) -> Record:
        checkpoint = home / "run" / "checkpoints" / "best.ckpt"
        folder = f"output_dir={tmp_path}"
        return prediction_of(tiny_prediction(home, folder, f"ckpt_path={checkpoint}", "batch_size=10", *overrides))

    return predicted


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that receives the molecules of every predicted batch."""
    counts: list[int] = []
    function = SE3TransformerTask.predicted
    monkeypatch.setattr(SE3TransformerTask, "predicted", lambda task, b: (counts.append(b.count), function(task, b))[1])
    return counts


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_every_molecule_is_in_the_csv_once_with_its_true_value(
    home: Path, predicted: Callable[..., Record], tmp_path: Path
) -> None:
    record = predicted()
    rows = rows_of(tmp_path / "predictions.csv")
    assert list(rows[0]) == ["molecule", "quantity", "predicted", "true", "unit", "trained_on"]
    lines = (home / "chains.csv").read_text().splitlines()[1:]
    smiles, energies = zip(*(line.split(",") for line in lines), strict=True)
    assert [row["molecule"] for row in rows] == [f"chains.csv line {i} ({text})" for i, text in enumerate(smiles, 2)]
    assert [float(row["true"]) for row in rows] == pytest.approx([float(energy) for energy in energies], abs=1e-5)
    assert {row["quantity"] for row in rows} == {"energy"}
    error = np.mean([abs(float(row["predicted"]) - float(row["true"])) for row in rows])
    assert record.final_metric is not None
    assert (record.final_metric.name, record.final_metric.value) == ("energy_mae", pytest.approx(error, abs=1e-5))
    assert (tmp_path / "predictions.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_from_before_execution_kernels_is_read_and_resumed(home: Path, tmp_path: Path) -> None:
    """It has `execution` among the network's arguments, and predicts the same."""
    checkpoint = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    checkpoint["model_config"]["task"]["network"]["execution"] = "reference"
    checkpoint["same_run"]["function"]["model.task.network.execution"] = "reference"
    old = tmp_path / "old.ckpt"
    torch.save(checkpoint, old)
    rows = []
    for path in (home / "run" / "checkpoints" / "last.ckpt", old):
        prediction_of(tiny_prediction(home, f"output_dir={tmp_path / path.stem}", f"ckpt_path={path}"))
        rows.append(rows_of(tmp_path / path.stem / "predictions.csv"))
    assert rows[0] == rows[1]
    record = train(tiny_se3(home, f"output_dir={tmp_path / 'resumed'}", f"ckpt_path={old}", "fit.max_epochs=3"))
    assert record.status == "done"


def test_errors_are_those_of_their_formulas_and_say_what_was_trained_on(
    predicted: Callable[..., Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = predicted().quality
    assert quality is not None
    mae, rmse, r2, constant = quality
    rows = rows_of(tmp_path / "predictions.csv")
    true, estimates = (np.array([float(row[name]) for row in rows]) for name in ("true", "predicted"))
    assert mae.value == pytest.approx(np.abs(estimates - true).mean(), rel=1e-4)
    assert rmse.value == pytest.approx(np.sqrt(((estimates - true) ** 2).mean()), rel=1e-4)
    assert r2.value == pytest.approx(1 - ((estimates - true) ** 2).sum() / ((true - true.mean()) ** 2).sum(), rel=1e-3)
    seen = np.array([row["trained_on"] == "yes" for row in rows])
    assert constant.value == pytest.approx(np.abs(true[seen].mean() - true).mean(), rel=1e-4)
    assert seen.sum() == 52
    assert "MAE" in capsys.readouterr().out and mae.of.endswith("64 molecules of the whole data, 52 trained on")


def test_of_another_file_nothing_was_trained_on(home: Path, predicted: Callable[..., Record], tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv"
    copy.write_bytes((home / "chains.csv").read_bytes())
    record = predicted(f"datamodule.source.file={copy}", f"datamodule.data_dir={tmp_path / 'prepared'}")
    assert {row["trained_on"] for row in rows_of(tmp_path / "predictions.csv")} == {"no"}
    assert record.quality and record.quality[0].of == "mean absolute error, 64 molecules of the whole data"


def test_predictions_have_the_error_of_the_evaluation(home: Path, predicted: Callable[..., Record]) -> None:
    evaluated = read_record(home / "run").history[-1]
    record = predicted("datamodule.predict=test", "datamodule.task=energy")
    assert record.final_metric is not None
    assert record.final_metric.value == pytest.approx(evaluated["test_at_best_energy_mae"], rel=1e-5)
    assert record.samples == 6


def test_the_splits_are_compared(
    home: Path, predicted: Callable[..., Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = predicted("evaluate=true")
    out = capsys.readouterr().out
    assert record.quality is not None
    errors = {figure.group: figure.value for figure in record.quality if figure.name == "MAE"}
    assert list(errors) == ["train", "val", "test"]
    assert {split: len(rows_of(tmp_path / f"predictions_{split}.csv")) for split in errors} == {
        "train": 52, "val": 6, "test": 6,
    }  # fmt: skip
    assert errors["test"] == pytest.approx(read_record(home / "run").history[-1]["test_at_best_energy_mae"], rel=1e-5)
    assert record.final_metric is not None and record.final_metric.value == errors["test"]
    assert record.samples == 64 and read_record(tmp_path).quality == record.quality
    assert re.search(r"^ +train +val +test\n  MAE ", out, re.MULTILINE)
    assert "train: 52 molecules of the train split, all trained on" in out


def test_without_true_values_there_is_no_metric_and_no_picture(
    predicted: Callable[..., Record], tmp_path: Path
) -> None:
    file = tmp_path / "unlabelled.smiles"
    file.write_text("CCO\nCCN\n", encoding="utf-8")
    record = predicted(
        "datamodule.task=null", f"datamodule.source.file={file}", f"datamodule.data_dir={tmp_path / 'd'}"
    )
    assert {row["true"] for row in rows_of(tmp_path / "predictions.csv")} == {""}
    assert record.final_metric is None and not (tmp_path / "predictions.png").exists()


def test_true_values_of_what_the_checkpoint_predicts_are_found(predicted: Callable[..., Record]) -> None:
    assert predicted("datamodule.task=null").final_metric is not None


def test_passes_repeat_until_there_are_enough_samples(
    predicted: Callable[..., Record], tmp_path: Path, batches: list[int]
) -> None:
    record = predicted("benchmark=true", "num_samples=100", "warmup_batches=3")
    assert batches == [10, 10, 10, *([10] * 6 + [4]), *[10] * 4]
    assert record.samples == 104
    assert len(rows_of(tmp_path / "predictions.csv")) == 64


def test_prediction_stops_after_the_requested_samples(predicted: Callable[..., Record], tmp_path: Path) -> None:
    assert predicted("num_samples=15").samples == 15
    assert len(rows_of(tmp_path / "predictions.csv")) == 15


def test_without_a_benchmark_every_molecule_is_predicted_once(
    predicted: Callable[..., Record], batches: list[int]
) -> None:
    record = predicted("num_samples=100")
    assert batches == [10] * 6 + [4]
    assert record.samples == 64 and record.throughput is None and record.with_loading is None


def test_the_record_has_times_with_and_without_loading(
    predicted: Callable[..., Record], capsys: pytest.CaptureFixture[str]
) -> None:
    record = predicted("benchmark=true")
    loaded = record.with_loading
    assert loaded is not None and loaded.throughput is not None and loaded.latency_s is not None
    assert record.latency_s is not None and record.latency_s.mean is not None and loaded.latency_s.mean is not None
    assert loaded.throughput < (record.throughput or 0) and loaded.latency_s.mean > record.latency_s.mean
    assert record.throughput == pytest.approx(64 / (7 * record.latency_s.mean))
    phases = record.phases_s
    spent_s = (phases["fetch"] or 0) + (phases["compute"] or 0)  # of the same work, to the next mark
    assert 0.5 * spent_s < 64 / loaded.throughput <= spent_s
    assert "with loading" in capsys.readouterr().out


def test_the_published_protocol_times_shuffled_training_molecules_after_a_first_pass(
    predicted: Callable[..., Record], tmp_path: Path, batches: list[int]
) -> None:
    record = predicted("benchmark=true", "model.predict.protocol=published", "num_samples=60")
    one_pass = [10] * 5 + [2]
    assert batches == one_pass * 3  # the first pass is not counted; two more give at least 60
    assert record.samples == 104 and record.with_loading is None
    assert not (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.predict.protocol=published"], "protocol=published only times; give benchmark=true"),
        (["output=values.txt"], "output=values.txt: predictions are written as csv"),
        (["datamodule.predict=held_out"], "datamodule.predict=held_out: there is no such split"),
    ],
)
def test_wrong_options_are_refused_by_name(
    overrides: list[str], message: str, predicted: Callable[..., Record]
) -> None:
    with pytest.raises(UserError, match=message):
        predicted(*overrides)


def composed_zinc() -> Any:
    """Returns the config of a datamodule of molecules without coordinates."""
    return composed("predict", "datamodule=zinc250k", "output_dir=unused", "data_root=unused").datamodule


def test_molecules_without_coordinates_are_refused(home: Path, tmp_path: Path) -> None:
    config = composed("predict", *tiny_prediction(home, f"output_dir={tmp_path}"))
    config.datamodule = composed_zinc()
    with pytest.raises(UserError, match="needs atoms in space; give datamodule=qm9"):
        predict(config)


@pytest.mark.parametrize("count", [1, 3000])
def test_parity_picture_of_one_and_of_many_molecules(count: int, tmp_path: Path) -> None:
    values: Any = np.linspace(-1, 1, count)
    homo = Quantity("homo", "eV", FinalMetric("homo_mae", "min", None))
    errors = errors_of(values + 0.1, values, homo, "of the test split")
    parity_picture(values + 0.1, values, "homo", errors, tmp_path / "parity.png")
    assert (tmp_path / "parity.png").stat().st_size > 10_000
