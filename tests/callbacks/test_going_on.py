"""A run that goes on from a checkpoint: its history, metrics.csv and TensorBoard's curves are those of one run."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from src.callbacks.history import packed, unpacked
from src.launch.ending import Interrupted
from src.report.record import read_record
from src.run import train
from tests.support.started import provoked, run
from tests.support.tiny_mobilenet import tiny_mobilenet

LOGGED = "logger=[csv,tensorboard]", "fit.max_epochs=2", "fit.eval_every_n_epochs=1"
SAME = ("step", "epoch", "samples", "loss", "top1")  # the others are times


def test_rows_are_packed_without_loss() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 2, "epoch": 0, "samples": 2**40 + 1, "time_s": 0.1, "loss": 1 / 3},
        {"step": 3, "epoch": 0, "samples": 2**40 + 2, "time_s": 0.2, "top1": 0.0},
    ]
    assert unpacked(packed(rows)) == rows and unpacked(packed([])) == []
    assert all(isinstance(row[name], int) for row in unpacked(packed(rows)) for name in ("step", "epoch", "samples"))


def compared(folder: Path) -> list[dict[str, Any]]:
    return [{name: row[name] for name in SAME if name in row} for row in read_record(folder).history]


def table(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{name: float(row[name]) for name in SAME if row.get(name)} for row in rows]


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("straight")
    train(tiny_mobilenet(home, *LOGGED))
    return home / "run"


def check_as_straight(folder: Path, straight: Path) -> None:
    assert compared(folder) == compared(straight)
    assert table(folder) == table(straight) == compared(straight)
    for name in ("loss", "top1"):
        rows = {row["step"]: row[name] for row in compared(straight) if name in row}
        # TensorBoard reads files of the same second in either order: then a step is there twice.
        assert dict(curve(folder, name)) == {step: pytest.approx(value) for step, value in rows.items()}
    rows = read_record(folder).history
    for name in ("time_s", "seconds"):
        assert [row[name] for row in rows] == sorted(row[name] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "elsewhere"), [(5, True), (8, False)])
def test_an_interrupted_run_goes_on_as_one(step: int, elsewhere: bool, straight: Path, tmp_path: Path) -> None:
    """From another folder and in its own; within an epoch, and after one."""
    with pytest.raises(Interrupted):
        train(tiny_mobilenet(tmp_path, *LOGGED, provoked(what="is_interrupted", step=step)))
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    folder = tmp_path / "other" if elsewhere else tmp_path / "run"
    overrides = [f"ckpt_path={last}"] if elsewhere else ["resume=true"]
    train(tiny_mobilenet(tmp_path, *LOGGED, f"output_dir={folder}", *overrides))
    check_as_straight(folder, straight)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint_without_the_rows_after_it(straight: Path, tmp_path: Path) -> None:
    often = (*LOGGED, "fit.checkpoint_every_n_steps=3")
    code, _, _ = run(tmp_path, *often, provoked(what="dies", step=13))
    assert code == -9
    saved = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=False)["global_step"]
    assert saved in (9, 12)  # a thread writes it
    train(tiny_mobilenet(tmp_path, *often, "resume=true"))
    check_as_straight(tmp_path / "run", straight)
