"""A callback for runs: something happens to one rank at a known moment."""

import os
import signal
import sys
import time
from typing import Any

import pytorch_lightning as pl
import torch

from src.callbacks.measuring import Measuring
from src.launch import ending


class AtRecord(Measuring):
    """Sends the signals of `what` while the record of the run is being made, all of them accepted."""

    def __init__(self, what: str) -> None:
        self.what = what.split()

    def figures(self, task: Any) -> dict[str, Any]:
        for name in self.what:
            ending.SAME_S = 0.0
            os.kill(os.getpid(), signal.Signals[name])
        return {}


class At(pl.Callback):
    """Does each of `what`, a method or a signal to its process, in order, on rank `rank` at a moment: before the
    training step with the number `step`, counted from 1, or if that is not given when the `hook` is called first,
    `on_validation_start` say; with `stopping`, when the ranks have agreed to end first. With `same_s`, signals within
    that many seconds count as one, on every rank.
    """

    def __init__(
        self,
        what: str,
        step: int | None = None,
        rank: int = 0,
        hook: str = "on_train_batch_start",
        same_s: float | None = None,
        stopping: bool = False,
    ) -> None:
        if same_s is not None:
            ending.SAME_S = same_s
        self.what, self.step, self.rank, self.stopping = what.split(), step, rank, stopping
        setattr(self, hook, self._arrived)

    def _arrived(self, trainer: pl.Trainer, module: Any, *_: object) -> None:
        self.module = module
        if self.stopping and not trainer.should_stop:
            return
        if trainer.global_rank == self.rank and self.step in (None, trainer.global_step + 1):
            self.step = -1
            print(f"provoked at {time.time()}", file=sys.stderr, flush=True)
            for what in self.what:
                if what in signal.Signals.__members__:
                    os.kill(os.getpid(), signal.Signals[what])
                else:
                    getattr(self, what)()

    def reports(self) -> None:
        """Nothing happens, but that the moment is printed."""

    def fails(self) -> None:
        raise ArithmeticError("this rank is broken")

    def diverges(self) -> None:
        """One of this rank's weights becomes infinite."""
        with torch.no_grad():
            next(self.module.parameters())[0] = torch.inf

    def moves_a_weight(self) -> None:
        """One of this rank's weights changes, as after a gradient that was not averaged."""
        with torch.no_grad():
            next(self.module.parameters()).mul_(1.01)

    def spoils_a_statistic(self) -> None:
        """One of this rank's running variances becomes infinite, which no other rank and no loss sees."""
        next(tensor for name, tensor in self.module.named_buffers() if name.endswith("running_var"))[0] = torch.inf

    def waits_in_its_first_start(self) -> None:
        """Waits to be asked to end, or to be killed, where SLURM has not queued this job again."""
        if "SLURM_RESTART_COUNT" not in os.environ:
            signal.pause()

    def sees_a_nan(self) -> None:
        """Lets this rank's host read a loss that is not finite, before the others do."""
        self.module.diverged = "a loss is infinite or NaN"

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def stops(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def is_terminated(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def is_interrupted(self) -> None:
        """As Ctrl-C does."""
        os.kill(os.getpid(), signal.SIGINT)

    def fails_when_interrupted(self) -> None:
        """Code that a signal interrupts raises an error of its own, as extension modules do."""
        try:
            self.is_interrupted()
            self.is_interrupted()
        except SystemExit:
            raise ArithmeticError("a consequence") from None

    def interrupts_its_launcher(self) -> None:
        os.kill(os.getppid(), signal.SIGINT)

    def kills_its_launcher(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
