"""Tiny runs of MobileNetV1 in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT, warm
from tests.support.tiny_mobilenet import SYNTHETIC, tiny_overrides

Begun = subprocess.Popen[str] | warm.Command
LIMIT_S = 120  # of a process that hangs
# Of a launcher whose ranks begin anew: with REPRISE_PLAIN_START=1 each process would take twice as long to import.
ANEW = (
    "-c",
    (
        "import runpy, sys, src.train; src.train.may_fork = lambda: False; del sys.argv[0]; "
        "runpy.run_path('train.py', run_name='__main__')"
    ),
)
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
) -> Begun:
    """Begins `train.py` with the overrides of a tiny run and these, by python or by `python` with the words of `by`.

    `group`: in a process group of its own, as a shell does, which signals can be sent to. `path`: where Python looks
    for modules first.
    """
    words = "train.py", *tiny_overrides(home, data), *overrides
    if not (by or path):
        return warm.Command(*words, group=group)
    return subprocess.Popen(
        [sys.executable, *by, *words],
        cwd=ROOT, env=warm.usual() | {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}, text=True,
        start_new_session=group, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        errors="replace",  # a process may be killed within a character
    )  # fmt: skip


def ended(process: Begun) -> tuple[int, str, str]:
    """Exit code and prints, when every process that could print has ended."""
    if isinstance(process, warm.Command):
        out, err = process.communicate(LIMIT_S)
        assert process.returncode is not None
        return process.returncode, out, err
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        with process:  # waits for it and closes its pipes
            process.kill()
        raise
    return process.returncode, out, err


def run(home: Path, *overrides: str) -> tuple[int, str, str]:
    return ended(begin(home, *overrides))
