"""Trains tiny models for long, and fails where memory, threads or open files grow.

    python -m tests.reliability.soak --epochs 10000 [MODEL ...]       # epochs of a few steps
    python -m tests.reliability.soak --seconds 3600 MODEL             # steps alone

With `--epochs` each epoch ends with an evaluation, a checkpoint and lines of the csv logger; with `--seconds` there are
steps and, every thousand of them, a line of the logger. Read 200 times are threads, descriptors and memory without
mapped files (how much of those counts depends on other processes). Growth is that from the middle to the end, by the
medians (of threads and descriptors the least) of a tenth of the readings at each. Prints a line for each model; exits
with 1 where one grows.
"""

import tests.support.patched_start  # noqa: F401, I001

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.reliability.kills import MODELS
from tests.support import ROOT

MIB = 2**20
LONG = 10**9
# The record and the csv logger keep a row of each evaluation, the clock 24 bytes a step: DLRM took 0.7 KB an epoch.
BYTES_OF_ROW = 1_000
FREE_MIB = 8.0  # what an allocator may take and keep
WRITING = 1  # the thread or descriptor of a checkpoint that a slow disk is still writing at each reading


def overrides(model: str, home: Path, epochs: int | None, seconds: float | None) -> list[str]:
    """Returns the command of a run of `epochs`, or of `seconds` of steps alone; with windows of a thousand steps."""
    values = f"file:{home / 'readings.jsonl'},epochs:{epochs or 'null'},seconds:{seconds or 'null'}"
    common = [*MODELS[model](home), f"output_dir={home / 'run'}", "logger=csv",
              f"+callbacks.watching={{_target_:tests.reliability.watching.Watching,{values}}}"]  # fmt: skip
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
        first, last = (typical(reading[name] for reading in part) for part in (middle, end))
        grown[name] = last - first
    grown["memory"] /= MIB
    return grown


def judge(readings: list[dict[str, Any]]) -> str:
    """Returns what grew beyond its limit, or nothing. One thread or descriptor more is that of a checkpoint."""
    grown = growth(readings)
    limit = FREE_MIB + grown["rows"] * BYTES_OF_ROW / MIB
    complaints = [f"memory by {grown['memory']:.1f} MiB (limit {limit:.1f})"] if grown["memory"] > limit else []
    complaints += [f"{name} by {grown[name]:g}" for name in ("threads", "descriptors") if grown[name] > WRITING]
    return ", ".join(complaints)


def soak(model: str, home: Path, epochs: int | None, seconds: float | None) -> list[dict[str, Any]]:
    """Returns the readings of a run in a process of its own, on one thread: several would wait for busy cores."""
    command = [sys.executable, "train.py", *overrides(model, home, epochs, seconds)]
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
        first, last, grown = readings[0], readings[-1], judge(readings)
        failed |= bool(grown)
        print(
            f"{model}: {last['step']:,} steps, {last['rows']:,} evaluations in {time.monotonic() - begun:.0f} s; "
            f"memory {first['memory'] / MIB:.1f}, in the end {last['memory'] / MIB:.1f} MiB "
            f"({growth(readings)['memory']:+.1f} in the second half), threads {last['threads']}, "
            f"descriptors {last['descriptors']}; {f'grew: {grown} (kept: {home})' if grown else 'nothing grew'}",
            flush=True,
        )
        if not grown:
            shutil.rmtree(home)
    sys.exit(failed)


if __name__ == "__main__":
    main()
