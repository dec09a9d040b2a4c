"""A run that diverges on a GPU, its steps in a CUDA graph: it fails soon, saves nothing of it, and no step waits."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from src.callbacks.divergence import Divergence
from src.config.complete import complete
from src.errors import UserError
from src.measure.clock import Clock
from src.report.record import read_record
from src.run import build, fit, quieten, train
from src.training.checkpoints import read_checkpoint
from tests.support.tiny_mobilenet import tiny_mobilenet

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ON_GPU = "hardware=auto", "precision=amp", "execution.compile=off"
LONG = "datamodule.steps_per_epoch=2000", "datamodule.pool_batches=8"


class Spoil(pl.Callback):
    """Makes a weight infinite before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step + 1 == self.step:
            with torch.no_grad():
                next(module.parameters())[0] = torch.inf


def spoiled(step: int) -> str:
    return f"+callbacks.spoil={{_target_:{__name__}.Spoil,step:{step}}}"


def test_a_graph_ends_soon_after_the_loss_is_nan(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the loss is infinite or NaN at step"):
        train(tiny_mobilenet(tmp_path, *ON_GPU, *LONG, spoiled(50), "measure.window=10"))
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.samples is not None
    assert record.samples < 8 * 1000 and not (tmp_path / "run" / "checkpoints").exists()


def test_the_last_incomplete_window_is_seen_before_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="resume=true goes on from the last finite checkpoint"):
        train(tiny_mobilenet(tmp_path, *ON_GPU, "fit.max_epochs=3", spoiled(8 + 6), "measure.window=1000"))
    assert read_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["global_step"] == 8
    assert read_record(tmp_path / "run").status == "failed"


def test_no_step_waits_for_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback's own part of each step runs where torch raises at any wait."""
    hook = Divergence.on_train_batch_end

    def watched(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            hook(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Divergence, "on_train_batch_end", watched)
    quieten()
    epoch = "datamodule.steps_per_epoch=100", "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"
    job = build(complete(tiny_mobilenet(tmp_path, *ON_GPU, *epoch, "measure.window=2")), Clock())
    fit(job)
    assert job.task.losses.device.type == "cuda" and job.task.losses == 0
