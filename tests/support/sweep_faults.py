"""Callbacks for tests of sweeps: they log that a run began, and make some runs fail."""

import os
import signal
from pathlib import Path

import psutil
import pytorch_lightning as pl
import torch


class Fault(pl.Callback):
    """Causes faults after the first training step. Each fault is given as the seed of the run that it ends.

    Args:
        seed: seed of this run.
        notes: file to which each run adds a line with its seed when it begins.
        oom: allocates more memory than the machine has.
        diverge: makes the weights infinite.
        crash: aborts the process.
        kill: kills the sweep's launcher, which is the parent of this process's supervisor; once.
        interrupt: sends SIGINT to this process, as Ctrl-C does; once.
        die: kills this process; once.
        stop: sends SIGINT to the launcher and waits for the signal that ends this run.
    """

    def __init__(self, seed: int, notes: str, **faults: int) -> None:
        self.seed, self.notes = seed, Path(notes)
        self.faults = [getattr(self, f"_{name}") for name, of_seed in faults.items() if of_seed == seed]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        with self.notes.open("a") as file:
            file.write(f"{self.seed}\n")

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: object) -> None:
        if trainer.global_step == 1:
            for fault in self.faults:
                fault(trainer, pl_module)

    def _oom(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        torch.ones(2**58)

    def _diverge(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        with torch.no_grad():
            for weight in task.parameters():
                weight *= float("inf")

    def _crash(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        os.abort()

    def _interrupt(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self._once(signal.SIGINT)

    def _die(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        self._once(signal.SIGKILL)

    def _once(self, kind: signal.Signals) -> None:
        if self.notes.read_text().split().count(str(self.seed)) == 1:
            os.kill(os.getpid(), kind)

    def _kill(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        if self.notes.read_text().split().count(str(self.seed)) == 1:
            psutil.Process().parents()[1].kill()

    def _stop(self, trainer: pl.Trainer, task: pl.LightningModule) -> None:
        signalled, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        before = signal.set_wakeup_fd(wakeup)  # gets a byte with each signal that this process handles
        psutil.Process().parents()[1].send_signal(signal.SIGINT)
        os.read(signalled, 1)
        signal.set_wakeup_fd(before)


class Limit(pl.Callback):
    """Allocates more memory than the machine has if the batch is larger than `most`."""

    def __init__(self, batch_size: int, most: int) -> None:
        self.too_large = batch_size > most

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.too_large:
            torch.ones(2**58)
