"""Predictions of DistilBERT: the csv, the accuracy, the picture, the clocks, and errors."""

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from src.errors import UserError
from src.models.distilbert.task import DistilBertTask
from src.report.record import Record, read_record
from src.run import train
from tests.support.composing import composed, prediction_of
from tests.support.tiny_distilbert import NUM_DEV, tiny_distilbert, tiny_prediction

pytestmark = pytest.mark.slow

TEXT = ["word1 good word2", "bad", '"lovely", word3 said', "word5 word6"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sentences, tokens and a checkpoint."""
    home = tmp_path_factory.mktemp("distilbert")
    train(tiny_distilbert(home, "fit.max_epochs=2"))
    return home


@pytest.fixture
def predicted(home: Path, tmp_path: Path) -> Callable[..., Record]:
    """Predicts with the checkpoint into `tmp_path`."""

    def predicted(*overrides: str, **options: Any) -> Record:
        checkpoint = f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}"
        return prediction_of(tiny_prediction(home, f"output_dir={tmp_path}", checkpoint, *overrides, **options))

    return predicted


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "reviews.txt"
    file.write_text("\n".join([*TEXT, ""]), encoding="utf-8")
    return file


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def expected_probabilities(home: Path, sentences: str | list[str]) -> np.ndarray:
    """Returns the checkpoint's probabilities of both labels for each sentence, one by one."""
    saved = torch.load(home / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    task: DistilBertTask = instantiate(saved["model_config"]["task"])
    task.load_state_dict(saved["state_dict"])
    data: Any = instantiate(composed("predict", *tiny_prediction(home)).datamodule)
    data.setup("predict")
    tokens = sentences if isinstance(sentences, str) else data.encode(sentences, "test")
    with torch.no_grad():
        return torch.cat([task.network.eval()(batch) for batch in data.loader(tokens, batch_size=1)]).softmax(1).numpy()


def dev_rows(home: Path) -> list[list[str]]:
    return [line.split("\t") for line in (home / "raw" / "dev.tsv").read_text().splitlines()[1:]]


@pytest.mark.parametrize("padding", ["packed", "max_length", "bucketed"])
def test_the_csv_has_every_sentence_of_the_dev_set_in_order(
    padding: str, home: Path, predicted: Callable[..., Record], tmp_path: Path
) -> None:
    record = predicted(padding=padding)
    rows, probabilities, names = (
        rows_of(tmp_path / "predictions.csv"),
        expected_probabilities(home, "dev"),
        ["negative", "positive"],
    )
    assert list(rows[0]) == ["sentence", "label", "probability", "true", "p_negative", "p_positive"]
    written = np.array([[float(row[f"p_{name}"]) for name in names] for row in rows])
    assert written == pytest.approx(probabilities, abs=2e-6) and written.sum(1) == pytest.approx(1, abs=2e-6)
    assert [[row["sentence"], str(names.index(row["true"]))] for row in rows] == dev_rows(home)
    assert [row["label"] for row in rows] == [names[label] for label in probabilities.argmax(1)]
    assert [float(row["probability"]) for row in rows] == pytest.approx(probabilities.max(1).tolist(), abs=2e-6)
    assert record.samples == NUM_DEV and (tmp_path / "predictions.png").stat().st_size > 5000


def test_the_accuracy_equals_that_of_the_evaluation(home: Path, predicted: Callable[..., Record]) -> None:
    record = predicted()
    evaluated, metric = read_record(home / "run").final_metric, record.final_metric
    assert record.quality and record.quality[0].of == f"right, {NUM_DEV} sentences of the dev split"
    assert metric is not None and evaluated is not None
    assert (metric.name, metric.value, metric.target) == ("acc", evaluated.value, evaluated.target)


def test_the_splits_are_compared(home: Path, predicted: Callable[..., Record]) -> None:
    evaluated, quality = read_record(home / "run").final_metric, predicted("evaluate=true").quality
    assert quality is not None and evaluated is not None and evaluated.value is not None
    assert list(dict.fromkeys(figure.group for figure in quality)) == ["train", "dev"]
    figures = {figure.name: figure.value for figure in quality if figure.group == "dev"}
    assert figures["accuracy"] == pytest.approx(100 * evaluated.value)
    last = read_record(home / "run").history[-1]
    assert figures["balanced accuracy"] == pytest.approx(100 * last["balanced_acc"])
    assert figures["macro F1"] == pytest.approx(100 * last["macro_f1"])
    assert {"majority class", "recall of negative", "precision of negative", "F1 of positive"} < set(figures)


def test_lines_of_a_file_are_labelled(
    home: Path, predicted: Callable[..., Record], text_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "own" / "labels.csv"
    record = predicted(f"model.predict.input={text_file}", f"output={output}")
    rows, probabilities = rows_of(output), expected_probabilities(home, TEXT)
    assert [row["sentence"] for row in rows] == TEXT
    assert list(rows[0]) == ["sentence", "label", "probability", "p_negative", "p_positive"]
    assert [row["label"] for row in rows] == [["negative", "positive"][label] for label in probabilities.argmax(1)]
    assert [float(row["probability"]) for row in rows] == pytest.approx(probabilities.max(1).tolist(), abs=2e-6)
    assert record.final_metric is None and [path.name for path in output.parent.iterdir()] == ["labels.csv"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "bad\n\ngood\n\u200b\nbad\n"),
        ("a.csv", "sentence,x\nbad,1\n,\n\ngood,2\n ,3\nbad,4\n"),  # as pandas, which skips a blank line alone
        ("a.jsonl", "".join(f'{{"sentence": {text}}}\n' for text in ('"bad"', "null", '"good"', '""', '"bad"'))),
    ],
)
def test_rows_without_a_sentence_keep_their_place(
    name: str, content: str, predicted: Callable[..., Record], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    record = predicted(f"model.predict.input={tmp_path / name}")
    rows = rows_of(tmp_path / "predictions.csv")
    assert [row["sentence"] for row in rows] == ["bad", "", "good", "", "bad"] and rows[0] == rows[4]
    assert [bool(row["label"] and row["probability"]) for row in rows] == [True, False, True, False, True]
    assert record.samples == 3 and record.reading is not None
    assert [remark.count for remark in record.reading.dropped] == [2]


def test_lines_of_standard_input_are_labelled(
    predicted: Callable[..., Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\r\n".join(TEXT).encode())))
    predicted("model.predict.input=-")
    assert [row["sentence"] for row in rows_of(tmp_path / "predictions.csv")] == TEXT


def test_split_and_number_of_sentences_can_be_chosen(predicted: Callable[..., Record], tmp_path: Path) -> None:
    record = predicted("datamodule.predict=train", "num_samples=10")
    assert len(rows_of(tmp_path / "predictions.csv")) == record.samples == 10


def test_the_record_has_both_clocks_and_the_utilisation(predicted: Callable[..., Record]) -> None:
    record = predicted("benchmark=true")
    assert record.latency_s is not None and record.latency_s.mean is not None and record.throughput is not None
    assert record.throughput == pytest.approx(NUM_DEV / (3 * record.latency_s.mean))
    assert record.with_loading is not None and record.with_loading.throughput is not None
    assert record.with_loading.throughput < record.throughput
    assert record.utilisation is not None and record.utilisation.flops_per_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\n \t\n", "reviews.txt has no sentence; give one or more"),
        (b"good\nb\xe4d\n", r"reviews.txt line 2 is not UTF-8 \(byte 0xe4\): give a text in UTF-8"),
        (b"", "reviews.txt is empty; give a sentence a line"),
    ],
)
def test_bad_text_is_an_error(
    text: bytes, words: str, predicted: Callable[..., Record], text_file: Path, tmp_path: Path
) -> None:
    text_file.write_bytes(text)
    with pytest.raises(UserError, match=words) as refused:
        predicted(f"model.predict.input={text_file}")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "predictions.csv").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["output=labels.txt"], "output=labels.txt: predictions are written as csv; give a name that ends in .csv"),
        (["model.predict.input=a.txt", "evaluate=true"], "of the data; leave out model.predict.input"),
        (["benchmark=true", "evaluate=true"], "evaluate=true compares the splits of the data; leave it out to time"),
        (
            ["model.predict.input=nowhere.txt"],
            r"cannot read nowhere.txt \(No such file or directory\): give a text",
        ),
        (["datamodule.predict=test"], "datamodule.predict=test: there is no such split; choose from train, dev"),
    ],
)
def test_bad_options_are_errors(overrides: list[str], words: str, predicted: Callable[..., Record]) -> None:
    with pytest.raises(UserError, match=words) as refused:
        predicted(*overrides)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_knows_its_words(
    home: Path, predicted: Callable[..., Record], text_file: Path, tmp_path: Path
) -> None:
    """Neither the files of the training nor the hub are there."""
    predicted(f"model.predict.input={text_file}", f"output={tmp_path / 'with_files.csv'}")
    overrides = [f"output_dir={tmp_path}", f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}", "hardware=cpu"]
    overrides += ["model=distilbert", f"model.predict.input={text_file}"]
    (home / "raw").rename(home / "away")
    try:
        prediction_of(overrides)
    finally:
        (home / "away").rename(home / "raw")
    assert rows_of(tmp_path / "predictions.csv") == rows_of(tmp_path / "with_files.csv")


def test_another_vocabulary_of_the_same_size_is_an_error(
    predicted: Callable[..., Record], home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text((home / "raw" / "vocab.txt").read_text().replace("lovely", "ugly"))
    with pytest.raises(UserError, match="is 'ugly', not 'lovely'; leave out "):
        predicted(f"datamodule.vocabulary={file}")


def test_another_vocabulary_is_an_error(predicted: Callable[..., Record], home: Path, tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text((home / "raw" / "vocab.txt").read_text() + "more\n")
    with pytest.raises(UserError, match="has 41 word pieces, the weights are for 40; give the vocabulary that"):
        predicted(f"datamodule.vocabulary={file}")
