"""A callback for runs: something happens to one rank at a known moment."""

import os
import signal
import sys
import time

import pytorch_lightning as pl


class At(pl.Callback):
    """Does each of `what`, in order, on rank `rank` at a moment: before the training step with the number `step`,
    counted from 1, or if that is not given when the `hook` is called first, `on_validation_start` say.
    """

    def __init__(self, what: str, step: int | None = None, rank: int = 0, hook: str = "on_train_batch_start") -> None:
        self.what, self.step, self.rank = what.split(), step, rank
        setattr(self, hook, self._arrived)

    def _arrived(self, trainer: pl.Trainer, *_: object) -> None:
        if trainer.global_rank == self.rank and self.step in (None, trainer.global_step + 1):
            self.step = -1
            print(f"provoked at {time.time()}", file=sys.stderr, flush=True)
            for what in self.what:
                getattr(self, what)()

    def fails(self) -> None:
        raise ArithmeticError("this rank is broken")

    def dies(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def is_terminated(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def is_interrupted(self) -> None:
        """As Ctrl-C does."""
        os.kill(os.getpid(), signal.SIGINT)

    def interrupts_its_launcher(self) -> None:
        os.kill(os.getppid(), signal.SIGINT)

    def kills_its_launcher(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
