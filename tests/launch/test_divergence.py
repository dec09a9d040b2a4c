"""Runs whose numbers become infinite or NaN: they fail before anything is saved or judged, on every rank."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from src.callbacks.divergence import first_not_finite
from src.errors import UserError
from src.report.record import Record, read_record
from src.run import train
from src.training.checkpoints import read_checkpoint
from src.training.task import Task
from tests.support.started import begin, ended, provoked, run
from tests.support.tiny_mobilenet import tiny_mobilenet

pytestmark = pytest.mark.slow

EPOCH = 8  # steps
LONG_WINDOW = "measure.window=1000"  # so that no step's loss is read on the way


def diverged(home: Path, *overrides: str) -> tuple[Record, str]:
    """Returns the record of a run that must have diverged, and its error."""
    with pytest.raises(UserError) as raised:
        train(tiny_mobilenet(home, *overrides))
    record = read_record(home / "run")
    assert record.status == "failed" and record.error is not None and record.error.message == str(raised.value)
    assert "\n" not in str(raised.value) and "lower hp.lr" in str(raised.value)
    return record, str(raised.value)


def steps_saved(home: Path) -> dict[str, int]:
    return {path.name: read_checkpoint(path)["global_step"] for path in home.glob("run/checkpoints/*")}


def test_a_loss_of_the_last_incomplete_window_is_seen(tmp_path: Path) -> None:
    record, error = diverged(tmp_path, "hp.lr=1e30", LONG_WINDOW)
    assert error.startswith("the loss is infinite or NaN at step 8 or before")
    assert steps_saved(tmp_path) == {}
    assert record.final_metric is not None and record.final_metric.value is None
    assert not any("top1" in row for row in record.history)


def test_a_long_epoch_ends_soon_after_the_loss_did(tmp_path: Path) -> None:
    epoch = "datamodule.steps_per_epoch=400", "datamodule.pool_batches=4"
    record, error = diverged(tmp_path, "hp.lr=1e30", *epoch)
    assert error.startswith("the loss is infinite or NaN at step ")
    assert record.samples is not None and record.samples <= 8 * 8  # of windows of 2 steps


def test_a_weight_is_seen_where_no_loss_has_met_it(tmp_path: Path) -> None:
    """The only step's loss is finite, and its update is not."""
    _, error = diverged(tmp_path, "hp.lr=1e38", "fit.max_steps=1", "model.task.schedule=null")
    assert " is infinite or NaN at step 1 or before" in error and "the loss" not in error
    assert steps_saved(tmp_path) == {}


def test_the_last_finite_checkpoint_stays_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, home = f"output_root={tmp_path}", tmp_path / "mobilenet_v1"
    _, error = diverged(home, root, provoked(what="diverges", step=EPOCH + 3), "fit.max_epochs=3", LONG_WINDOW)
    assert steps_saved(home) == {"last.ckpt": EPOCH, "best.ckpt": EPOCH}
    last = home / "run" / "checkpoints" / "last.ckpt"
    assert error.endswith(f"; resume=true goes on from the last finite checkpoint, {last}")
    again = tiny_mobilenet(tmp_path / "again", root, "resume=true", "fit.max_epochs=2")
    assert train(again).status == "done"
    assert f"resume=true: going on from {last}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "window", "said"),
    [
        ("sees_a_nan", 2, ["rank 1: a loss is infinite or NaN", "the loss of another rank is infinite or NaN; lower"]),
        ("spoils_a_statistic", 1000, ["", ""]),
    ],
)
def test_one_rank_ends_all(tmp_path: Path, what: str, window: int, said: list[str]) -> None:
    """Under torchrun, which corrects no record: rank 0 writes what itself has ended it, and each rank says why."""
    provoke = provoked(what=what, step=EPOCH + 3, rank=1)
    launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    epochs = "fit.max_epochs=3", f"measure.window={window}"
    code, _, err = ended(begin(tmp_path, "trainer=1x2", *epochs, provoke, by=launcher))
    assert code == 1 and "infinite or NaN" in err
    lines = sorted(line for line in err.splitlines() if line.startswith("error: "))
    assert len(lines) == 2 and all(line.startswith(f"error: {text}") for line, text in zip(lines, said, strict=True))
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None and record.error.type == "UserError"
    assert "infinite or NaN" in record.error.message
    assert steps_saved(tmp_path)["last.ckpt"] == EPOCH


def test_ranks_with_different_weights_end_before_they_are_saved(tmp_path: Path) -> None:
    provoke = provoked(what="moves_a_weight", step=EPOCH + 3, rank=1)
    code, _, err = run(tmp_path, "trainer=1x2", "fit.max_epochs=3", LONG_WINDOW, provoke)
    assert code == 2, err
    assert err.splitlines()[-1].startswith("error: ")
    assert f" differs between ranks at step {2 * EPOCH}: " in err
    assert steps_saved(tmp_path)["last.ckpt"] == EPOCH


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_weight_that_is_not_finite_is_named(value: float, dtype: torch.dtype) -> None:
    first, norm, last = nn.Linear(3, 2, dtype=dtype), nn.BatchNorm1d(2, dtype=dtype), nn.Linear(2, 2, dtype=dtype)
    task = Task(nn.Sequential(first, norm, last), partial(torch.optim.SGD, lr=0.1))
    first.weight.data.fill_(torch.finfo(dtype).max)  # finite, and its sum is not
    assert first_not_finite(task) is None
    last.bias.data[1] = value
    assert first_not_finite(task) == "2.bias"
    assert norm.running_var is not None
    norm.running_var[0] = value
    last.bias.data[1] = 0
    assert first_not_finite(task) == "1.running_var"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_adding_nothing_of_a_number_that_is_not_finite_is_nan(value: float) -> None:
    assert torch.zeros(()).add_(torch.tensor(value), alpha=0).isnan()
    assert not torch.zeros(()).add_(torch.tensor(1e38), alpha=0).any()
