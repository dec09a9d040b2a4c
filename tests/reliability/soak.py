"""Trains tiny models for long, and fails where memory, threads or open files grow.

    python -m tests.reliability.soak --epochs 10000 [MODEL ...]       # epochs of a few steps
    python -m tests.reliability.soak --seconds 3600 MODEL             # steps alone

With `--epochs` each epoch ends with an evaluation, a checkpoint and lines of the csv logger; with `--seconds` there are
steps and, every thousand of them, a line of the logger. Read 200 times are threads, descriptors and memory without
mapped files (how much of those counts depends on other processes). Growth is that from the middle to the end, by the
medians (of threads and descriptors the least) of a tenth of the readings at each. Prints a line for each model; exits
with 1 where one grows.
"""

import tests.support.lean_start  # noqa: F401, I001

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytorch_lightning as pl

from src.run import train
from tests.reliability.kills import MODELS
from tests.support import ROOT
from tests.support.composing import composed

READINGS = 200
MIB = 2**20
LONG = 10**9
# The record and the csv logger keep a row of each evaluation, the clock 24 bytes a step: DLRM took 3.8 KB an epoch.
BYTES_OF_ROW = 5_000
FREE_MIB = 8.0  # what an allocator may take and keep


class Watching(pl.Callback):
    """Reads the process's memory, threads and descriptors at even distances of epochs or seconds.

    Args:
        file: of the readings, as JSON lines.
        epochs: of the whole run; None for a run of `seconds`.
    """

    def __init__(self, file: str, epochs: int | None = None, seconds: float | None = None) -> None:
        self.file, self.process = Path(file), psutil.Process()
        self.every = (epochs or seconds or 1) / READINGS
        self.by_epochs = epochs is not None
        self.begun, self.next, self.rows = time.monotonic(), self.every, 0

    def on_validation_end(self, *_: Any) -> None:
        self.rows += 1

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        at = trainer.current_epoch if self.by_epochs else time.monotonic() - self.begun
        if at < self.next:
            return
        self.next = at + self.every
        found = {"at": at, "step": trainer.global_step, "rows": self.rows, "memory": anonymous_memory(),
                 "threads": self.process.num_threads(), "descriptors": self.process.num_fds()}  # fmt: skip
        with self.file.open("a") as file:
            file.write(json.dumps(found) + "\n")


def anonymous_memory() -> int:
    """Returns the bytes of this process in memory that are of no file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def overrides(model: str, home: Path, epochs: int | None, seconds: float | None) -> list[str]:
    """Returns the command of a run of `epochs`, or of `seconds` of steps alone; with windows of a thousand steps."""
    given = f"file:{home / 'readings.jsonl'},epochs:{epochs or 'null'},seconds:{seconds or 'null'}"
    common = [*MODELS[model](home), f"output_dir={home / 'run'}", "logger=csv",
              f"+callbacks.watching={{_target_:tests.reliability.soak.Watching,{given}}}"]  # fmt: skip
    if epochs is None:
        return [*common, f"fit.max_epochs={LONG}", "fit.eval_every_n_epochs=null", f"fit.max_time_s={seconds}",
                f"fit.checkpoint_every_n_epochs={LONG}", "measure.window=1000"]  # fmt: skip
    return [*common, f"fit.max_epochs={epochs}", "fit.eval_every_n_epochs=1", "fit.checkpoint_every_n_epochs=1",
            "measure.window=1000"]  # fmt: skip


def growth(readings: list[dict[str, Any]]) -> dict[str, float]:
    """Returns how much each figure grew from the middle of the readings to their end; memory in MiB.

    A thread and a descriptor come and go with each checkpoint that is written: of those the least number counts.
    """
    tenth = max(1, len(readings) // 10)
    middle, end = readings[len(readings) // 2 :][:tenth], readings[-tenth:]
    grown = {}
    for name in ("memory", "threads", "descriptors", "rows"):
        typical = min if name in ("threads", "descriptors") else statistics.median
        first, last = (typical(each[name] for each in part) for part in (middle, end))
        grown[name] = last - first
    grown["memory"] /= MIB
    return grown


def judge(readings: list[dict[str, Any]]) -> str:
    """Returns what grew beyond its limit, or nothing."""
    grown = growth(readings)
    limit = FREE_MIB + grown["rows"] * BYTES_OF_ROW / MIB
    found = [f"memory by {grown['memory']:.1f} MiB (limit {limit:.1f})"] if grown["memory"] > limit else []
    return ", ".join(found + [f"{name} by {grown[name]:g}" for name in ("threads", "descriptors") if grown[name] > 0])


def soak(model: str, home: Path, epochs: int | None, seconds: float | None) -> list[dict[str, Any]]:
    """Returns the readings of a run in a process of its own, on one thread: several would wait for busy cores."""
    command = [sys.executable, "-m", "tests.reliability.soak", "run", *overrides(model, home, epochs, seconds)]
    with (home / "log.txt").open("w") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"the run failed: {home / 'log.txt'}"
    return [json.loads(line) for line in (home / "readings.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains tiny models for long, and fails where something grows.")
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}; default: all")
    many = parser.add_mutually_exclusive_group(required=True)
    many.add_argument("--epochs", type=int)
    many.add_argument("--seconds", type=float)
    asked = parser.parse_args()
    failed = False
    for model in asked.models:
        begun = time.monotonic()
        home = Path(tempfile.mkdtemp(prefix=f"soak_{model}_"))
        readings = soak(model, home, asked.epochs, asked.seconds)
        first, last, found = readings[0], readings[-1], judge(readings)
        failed |= bool(found)
        print(
            f"{model}: {last['step']:,} steps, {last['rows']:,} evaluations in {time.monotonic() - begun:.0f} s; "
            f"memory {first['memory'] / MIB:.1f}, in the end {last['memory'] / MIB:.1f} MiB "
            f"({growth(readings)['memory']:+.1f} in the second half), threads {last['threads']}, "
            f"descriptors {last['descriptors']}; {f'grew: {found} (kept: {home})' if found else 'nothing grew'}",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        train(composed("train", *sys.argv[2:]))
    else:
        main()
