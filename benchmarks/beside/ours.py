"""Our side: a callback for train.py, and predict.py with a turn around every so many batches.

`+callbacks.turns._target_=benchmarks.beside.ours.Turns` is all that is added to the training command, so a turn has
all that a training has: loading, transfer, casts, the optimizer, clipping, and the hooks of all callbacks.
"""

import runpy
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl

from benchmarks.beside.link import Link
from src.training.task import Task

CALLBACK = "+callbacks.turns._target_=benchmarks.beside.ours.Turns"
INCLUDES = {
    "train": "loading, transfer, casts, loss scaling, clipping, optimizer, callbacks",
    "predict": "loading, transfer, casts, the result on the host; waits for the device after every batch",
}


class Turns(pl.Callback):
    """Ends a turn after its last step and waits for the next one; ends the training when there is none."""

    def __init__(self) -> None:
        self.link = Link()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self.link.say_ready(includes=INCLUDES["train"])
        self._wait(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.link.step(pl_module.samples_trained):
            self._wait(trainer, pl_module)

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        with suppress(OSError):  # of a parent that is gone
            self.link.say_failed(exception)

    def _wait(self, trainer: pl.Trainer, task: Task) -> None:
        with task.clock.within("evaluation"):  # no part of the rates in the run's own record
            if not self.link.begin(task.samples_trained):
                trainer.should_stop = True


def predict(arguments: list[str]) -> None:
    """Runs predict.py with these arguments, in turns; ends the process with the last turn."""
    from src.training import prediction

    link = Link()
    plain = prediction.TimedBatches.over

    def wait(samples: int) -> None:
        if not link.begin(samples):
            sys.exit()

    def over(timed: Any, batches: Iterable[Any], samples: int | None = None) -> Iterator[Any]:
        if not timed.samples:
            link.say_ready(includes=INCLUDES["predict"])
            wait(0)
        for output in plain(timed, batches, samples):
            if link.step(timed.samples):
                wait(timed.samples)
            yield output

    prediction.TimedBatches.over = over  # type: ignore[method-assign]
    sys.argv = ["predict.py", *arguments]
    try:
        runpy.run_path("predict.py", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            link.say_failed(RuntimeError(f"predict.py ended with exit code {ended.code}"))
        raise


if __name__ == "__main__":
    predict(sys.argv[1:])
