"""Writes the last and best checkpoints atomically, from a copy while training goes on; their time is a phase."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytorch_lightning as pl
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.callbacks import Checkpoint as BaseCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from src.config.ranges import Count
from src.system.files import link_atomically, written_atomically
from src.training.checkpoints import read_checkpoint, write_checkpoint
from src.training.task import Task

MAX_COPIES = 2  # that wait to be written: `best.ckpt` and `last.ckpt` of one evaluation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint plugin: writes atomically with a digest, verifies it when reading, unpickles no code.

    A checkpoint is copied to the host's memory and written by a thread. One that would take more than half of the free
    memory is written at once. A write that fails raises its UserError at the next save or `wait`.
    `storage_options` may be another path, which the file then has as well.

    Args:
        free_memory: returns the free bytes of the host's memory.
        outlasts_fit: the last file may be written after training, beside an evaluation; call `wait` after that.
    """

    def __init__(
        self,
        free_memory: Callable[[], int] = lambda: psutil.virtual_memory().available,
        outlasts_fit: bool = False,
    ) -> None:
        self._free_memory, self._outlasts_fit = free_memory, outlasts_fit
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: list[Future[None]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        while self._pending and (len(self._pending) == MAX_COPIES or self._pending[0].done()):
            self._pending.pop(0).result()
        if size_of(checkpoint) > self._free_memory() / 2:
            self.wait()
            write(checkpoint, Path(path), storage_options)
            return
        copy = apply_to_collection(checkpoint, Tensor, lambda tensor: tensor.detach().to("cpu", copy=True))
        self._pending.append(self._thread.submit(write, copy, Path(path), storage_options))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        self.wait()
        return read_checkpoint(Path(path))

    def wait(self) -> None:
        """Waits until every checkpoint is written. Raises UserError for the first one that could not be."""
        pending, self._pending = self._pending, []
        for written in pending:
            written.result()

    def teardown(self) -> None:
        """Waits as `wait` does at the end of training, unless writing may outlast that."""
        if not self._outlasts_fit:
            self.wait()


def write(checkpoint: dict[str, Any], path: Path, also: Path | None) -> None:
    write_checkpoint(checkpoint, path)
    if also is not None:
        link_atomically(path, also)


def size_of(checkpoint: dict[str, Any]) -> int:
    """Returns the bytes of its tensors."""
    sizes: list[int] = []
    apply_to_collection(checkpoint, Tensor, lambda tensor: sizes.append(tensor.nbytes))
    return sum(sizes)


class Checkpoint(BaseCheckpoint):
    """Writes `last.ckpt`, and `best.ckpt` when an evaluation has the best value so far of the task's final metric.

    Where both are written after one step they are one file with two names: it takes half of the time and the disk.
    A resumed run copies the `best.ckpt` of the run it continues.

    Args:
        dirpath: folder of the checkpoints.
        every_n_epochs, every_n_steps: how often `last.ckpt` is written; it also is at the end of training. After a
            step with an evaluation it is written once that is over: a resumed run neither skips the evaluation nor
            forgets that it has ended training.
    """

    def __init__(self, dirpath: str, every_n_epochs: Count = 1, every_n_steps: Count | None = None) -> None:
        self.folder = Path(dirpath)
        self.every_n_epochs, self.every_n_steps = every_n_epochs, every_n_steps
        self.best: float | None = None
        self.best_path: Path | None = None  # of the best evaluation
        self.last_path: Path | None = None  # of the newest `last.ckpt` of this run
        self._saved_at = -1
        self._due = False
        self._is_best = False  # what is about to be written as `last.ckpt`

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if self.best is None or self.best_path is not None or trainer.ckpt_path is None:
            return
        before, here = Path(trainer.ckpt_path).with_name("best.ckpt"), self.folder / "best.ckpt"
        if trainer.is_global_zero and before.exists() and before != here:
            with pl_module.clock.within("checkpoint"), written_atomically(here) as temporary:
                shutil.copyfile(before, temporary)
        self.best_path = here if before.exists() else None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A run that stops within an epoch saves here, because Lightning then counts the epoch as done.
        stops = trainer.should_stop or trainer.global_step == trainer.max_steps
        if stops or (self.every_n_steps and trainer.global_step % self.every_n_steps == 0):
            self._due = trainer.is_last_batch or is_evaluated_next(trainer)
            if not self._due:
                self._save_last(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if trainer.sanity_checking:
            return
        metric = pl_module.final_metric
        value = pl_module.metrics.get(metric.name)
        fits = trainer.state.fn == TrainerFn.FITTING
        is_within_epoch = fits and not trainer.is_last_batch
        is_epochs = not is_within_epoch and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        saves_last = fits and (self._due or is_epochs or (is_within_epoch and trainer.should_stop))
        if value is not None and value == value and metric.better(value, self.best):
            self.best, self.best_path = value, self.folder / "best.ckpt"
            self._is_best = saves_last
            if not saves_last:
                self._save(trainer, pl_module, "best")
        if is_within_epoch and saves_last:
            self._due = False
            self._save_last(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        if self._due or (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._due = False
            self._save_last(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._save_last(trainer, pl_module)
        with pl_module.clock.within("checkpoint"):
            trainer.strategy.checkpoint_io.teardown()  # waits until they are written, or leaves that to `run.fit`

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Takes the best checkpoint of a run whose training was done: it is not begun again."""
        self.on_train_start(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def _save_last(self, trainer: pl.Trainer, task: Task) -> None:
        is_best, self._is_best = self._is_best, False
        if self._saved_at != trainer.global_step:
            self._saved_at = trainer.global_step
            self.last_path = self.folder / "last.ckpt"
            if is_best:  # which comes first: a run that is killed between the two goes on from the step before
                self._save(trainer, task, "best", self.last_path)
            else:
                self._save(trainer, task, "last")
        elif is_best:
            self._save(trainer, task, "best")

    def _save(self, trainer: pl.Trainer, task: Task, name: str, also: Path | None = None) -> None:
        with task.clock.within("checkpoint"):
            trainer.save_checkpoint(self.folder / f"{name}.ckpt", storage_options=also)


def is_evaluated_next(trainer: pl.Trainer) -> bool:
    """Returns whether an evaluation every so many steps follows the step that has just been made."""
    every = (
        trainer.val_check_interval if trainer.check_val_every_n_epoch is None and trainer.enable_validation else None
    )
    return isinstance(every, int) and (trainer.fit_loop.total_batch_idx + 1) % every == 0
