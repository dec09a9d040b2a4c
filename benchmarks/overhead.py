"""Measures the overhead of the measuring callbacks: the same loop with and without them, in turn.

python -m benchmarks.overhead
"""

import statistics
import time
from typing import Any

import pytorch_lightning as pl
import torch

from src.callbacks.energy import Energy
from src.callbacks.history import History
from src.callbacks.memory import Memory
from src.callbacks.phases import Phases
from src.callbacks.throughput import Throughput
from src.config.schema import Hardware, Precision
from src.datamodules.base import Metered
from src.datamodules.resident import PoolLoader
from src.measure.clock import Clock
from src.training.task import Task

STEP_S = 2e-3


class MutedClock(Clock):
    """A clock that does nothing, for the loop without measuring."""

    def mark(self, phase: str, samples: int | None = None) -> None:
        pass

    def begin_training(self, device: torch.device) -> None:
        pass

    def end_training(self) -> None:
        pass


class FixedStep(Task):
    """A task whose step takes about 2 ms: a busy loop on a CPU, matrix products on a GPU."""

    unit = "samples"

    def __init__(self, clock: Clock, products: int) -> None:
        super().__init__(torch.nn.Identity(), torch.optim.SGD)
        self.clock, self.products = clock, products

    def on_train_start(self) -> None:
        self.matrix = torch.rand(2048, 2048, device=self.device)
        self.begin_s = time.perf_counter()

    def on_train_end(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.begin_s

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.clock.mark("other")
        if self.device.type == "cuda":
            for _ in range(self.products):
                torch.mm(self.matrix, self.matrix)
        else:
            until = time.perf_counter() + STEP_S
            while time.perf_counter() < until:
                pass
        self.last = {"loss": self.matrix[0, 0], "bits_atom": self.matrix[0, 1], "bits_bond": self.matrix[0, 2]}
        self.clock.mark("compute", samples=1)

    def configure_optimizers(self) -> None:  # type: ignore[override]
        return None


def seconds_per_step(measured: bool, steps: int, products: int) -> float:
    """Returns the mean step time of one training loop of Lightning with a step of fixed length."""
    clock = Clock() if measured else MutedClock()
    task = FixedStep(clock, products)
    hardware, precision = Hardware(name="none", peak_flops={"fp32": 1.0}), Precision(name="fp32")
    measuring: list[pl.Callback] = [Phases(), Throughput(20, hardware, precision), History(20), Memory(), Energy()]
    trainer = pl.Trainer(
        accelerator="auto", devices=1, max_epochs=1, logger=False, callbacks=measuring if measured else [],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = PoolLoader([torch.zeros(1)], steps, 1)
    trainer.fit(task, Metered(batches, clock) if measured else batches)
    return task.seconds / steps


def main(steps: int = 500, pairs: int = 5) -> None:
    """Prints the median step time with and without measuring, and the difference."""
    pl.utilities.disable_possible_user_warnings()  # type: ignore[attr-defined]
    products = 1
    if torch.cuda.is_available():
        seconds_per_step(False, 50, 1)
        products = max(1, round(STEP_S * 50 / seconds_per_step(False, 50, 50)))
    measured_s, plain_s = [], []
    for _ in range(pairs):
        plain_s.append(seconds_per_step(False, steps, products))
        measured_s.append(seconds_per_step(True, steps, products))
    plain, measured = statistics.median(plain_s), statistics.median(measured_s)
    print(
        f"without measuring {plain * 1e3:.4f} ms a step, with {measured * 1e3:.4f} ms: "
        f"{(measured - plain) * 1e6:+.1f} us, {measured / plain - 1:+.2%}  (medians of {pairs} x {steps} steps)"
    )


if __name__ == "__main__":
    main()
