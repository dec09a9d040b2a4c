"""Profiles the kernels of a few steps with torch's profiler: `callbacks=profile`."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile

from src.config.ranges import Count
from src.system.files import write_text, written_atomically
from src.training.task import Task

KERNELS = 40  # in the table


class Profile(pl.Callback):
    """Writes `profile.txt` into the run's folder: device time per step by kernel, the longest first.

    Also writes `trace.json`, a time line of the same steps for https://ui.perfetto.dev or chrome://tracing.

    Args:
        first_step: the first step to profile, after compilation and graph capture.
        steps: number of profiled steps. Profiling slows them down.
    """

    def __init__(self, first_step: Count = 40, steps: Count = 5) -> None:
        self.first_step, self.steps = first_step, steps
        self._profiler: profile | None = None
        self._calls = 0

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Task, batch: Any, batch_idx: int) -> None:
        self._calls += 1
        if self._calls == self.first_step:
            cuda = pl_module.device.type == "cuda"
            self._profiler = profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU])
            self._profiler.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._calls == self.first_step + self.steps - 1:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Writes the profile of fewer steps where training ended within them, or says that it ended before."""
        self._write(trainer, pl_module)
        if self._calls < self.first_step and trainer.is_global_zero:
            print(f"note: no profile: training ended after {self._calls} steps; give callbacks.profile.first_step")

    def on_exception(self, trainer: pl.Trainer, pl_module: Task, exception: BaseException) -> None:
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _write(self, trainer: pl.Trainer, task: Task) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        if task.device.type == "cuda":
            torch.cuda.synchronize()
        profiler.stop()
        if task.output_dir is not None and trainer.is_global_zero:
            task.artifacts["profile"] = task.output_dir / "profile.txt"
            write_text(task.artifacts["profile"], self._table(profiler, task.device.type))
            task.artifacts["time line"] = task.output_dir / "trace.json"
            with written_atomically(task.artifacts["time line"]) as temporary:
                profiler.export_chrome_trace(str(temporary))

    def _table(self, profiler: profile, device: str) -> str:
        events, steps = profiler.key_averages(), self._calls - self.first_step + 1
        time_us = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
        kernels = sorted(((getattr(e, time_us), e.count, e.key) for e in events), reverse=True)
        total_us = sum(us for us, _, _ in kernels)
        lines = [f"{total_us / 1e3 / steps:.3f} ms of {device} time a step, mean of {steps} steps", ""]
        lines += ["ms/step  share  calls/step  mean us  kernel"]
        for us, count, name in kernels[:KERNELS]:
            share, calls = us / (total_us or 1), count / steps
            lines.append(f"{us / 1e3 / steps:7.3f}  {share:5.1%}  {calls:10.1f}  {us / count:7.1f}  {name:.100}")
        return "\n".join(lines) + "\n"
