"""Predictions of new files of one's own clicks: other spellings, columns and values than in training."""

import csv
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from src.errors import UserError
from src.report.record import Record
from src.run import train
from tests.support.composing import prediction_of
from tests.support.tiny_dlrm import tiny_dlrm

pytestmark = pytest.mark.slow

DRAW = random.Random(0)
ROWS = [(DRAW.randint(0, 1), DRAW.randint(18, 80), DRAW.randint(1, 30), DRAW.choice("abc")) for _ in range(150)]
HEADER = ["clicked,age,site,device"]
LINES = [f"{label},{age},{site},{device}" for label, age, site, device in ROWS]
SOURCE = "datamodule.source"
Predict = Callable[..., tuple[Record, list[float]]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("clicks")
    (home / "my.csv").write_text("\n".join([*HEADER, *LINES, ""]))
    data = (
        "datamodule=click_file", f"{SOURCE}.file={home / 'my.csv'}", f"{SOURCE}.label=clicked",
        f"{SOURCE}.numerical=[age]", f"{SOURCE}.categorical=[site,device]", f"{SOURCE}.buckets=200",
    )  # fmt: skip
    train(tiny_dlrm(home, "model.task.tables=null", "hp.batch_size=16", "fit.max_epochs=3", data=data))
    return home / "run" / "checkpoints" / "last.ckpt"


@pytest.fixture
def predicted(checkpoint: Path, tmp_path: Path) -> Predict:
    def predicted(lines: list[str], *overrides: str) -> tuple[Record, list[float]]:
        """Returns the record and the probabilities of the rows of a table."""
        (tmp_path / "new.csv").write_text("\n".join([*lines, ""]))
        record = prediction_of([
            "model=dlrm", "datamodule=click_file", f"ckpt_path={checkpoint}", f"{SOURCE}.file={tmp_path / 'new.csv'}",
            f"{SOURCE}.held_out_share=1", "hardware=cpu", "precision=fp32", "batch_size=16",
            f"data_root={tmp_path / 'data'}", f"output_dir={tmp_path / 'out'}", *overrides,
        ])  # fmt: skip
        with (tmp_path / "out" / "predictions.csv").open(newline="", encoding="utf-8") as file:
            return record, [float(row["probability"]) for row in csv.DictReader(file)]

    return predicted


def test_another_spelling_and_order_of_columns_gives_the_same_probabilities(predicted: Predict) -> None:
    _, before = predicted([*HEADER, *LINES])
    lines = [f"{device},x,{site}.0,{label}.0,{age}.0" for label, age, site, device in ROWS]
    record, after = predicted(["device,note,site,clicked,age", *lines])
    assert after == before and len(set(before)) > 30
    assert record.reading is not None and record.reading.changed[0].count == len(ROWS)
    _, without_labels = predicted(["age,site,device", *(line.partition(",")[2] for line in LINES)])
    assert without_labels == before


def test_values_that_training_never_had_are_counted(predicted: Predict, capsys: pytest.CaptureFixture[str]) -> None:
    record, _ = predicted([*HEADER, "1,30,999,a", "1,30,3,a", "1,30,,a", "1,30,998,b"])
    assert record.reading is not None
    note = "categories never seen in training: site 75.0% of the rows (3 values), device 0.0% of the rows (0 values)"
    assert record.reading.notes[-1].startswith(note)
    assert f"note: {note}" in capsys.readouterr().out


def test_what_does_not_fit_the_training_is_refused_by_name(predicted: Predict) -> None:
    with pytest.raises(UserError, match=r"new.csv line 1: there is no column 'device', only 'clicked', 'age', 'site'"):
        predicted(["clicked,age,site", "1,30,3"])
    with pytest.raises(UserError, match=r"categorical=\[device,site\] is another order .*; give \[site,device\]"):
        predicted([*HEADER, *LINES], f"{SOURCE}.categorical=[device,site]")
