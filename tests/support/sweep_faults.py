"""A callback for the runs of sweeps: it notes that a run began, and does to some of them what ends runs in practice."""

import os
import signal
from pathlib import Path

import psutil
import pytorch_lightning as pl
import torch


class Fault(pl.Callback):
    """Before the first training step of the run whose seed is named.

    Args:
        seed: of this run.
        notes: file that gets a line with the seed for each run that begins.
        oom: asks for more memory than there is.
        diverge: ruins the weights.
        crash: ends the process as an error in C does.
        kill: kills the sweep's launcher, which is the parent of this process's supervisor; once.
        stop: presses Ctrl-C for the launcher and waits to be ended.
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
    """Asks for more memory than there is where the batch is larger than `most`."""

    def __init__(self, batch_size: int, most: int) -> None:
        self.too_large = batch_size > most

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.too_large:
            torch.ones(2**58)
