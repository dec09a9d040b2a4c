"""Tiny runs of MobileNetV1 in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.tiny_mobilenet import SYNTHETIC, tiny_overrides

LIMIT_S = 120  # of a process that hangs
LONG = "datamodule.steps_per_epoch=100000"  # an epoch that nobody waits for


def provoked(**options: object) -> str:
    """Returns the override for `provoking.At`."""
    values = ",".join(f"{name}:{value}" for name, value in options.items())
    return f"+callbacks.at={{_target_:tests.support.provoking.At,{values}}}"


def begin(
    home: Path,
    *overrides: str,
    by: tuple[str, ...] = (),
    group: bool = False,
    path: tuple[Path, ...] = (),
    data: tuple[str, ...] = SYNTHETIC,
) -> subprocess.Popen[str]:
    """Begins `train.py` with the overrides of a tiny run and these, `by` python itself or by `python -m`.

    `group`: in a process group of its own, as a shell does, which signals can be sent to. `path`: where Python looks
    for modules first.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HYDRA"))}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*path, ROOT)))
    return subprocess.Popen(
        [sys.executable, *by, "train.py", *tiny_overrides(home, data), *overrides],
        cwd=ROOT, env=environment, start_new_session=group, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace",  # a process may be killed within a character
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and prints, when every process that could print has ended."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        with process:  # waits for it and closes its pipes
            process.kill()
        raise
    return process.returncode, out, err


def run(home: Path, *overrides: str) -> tuple[int, str, str]:
    return ended(begin(home, *overrides))
