"""Runs that are killed and gone on with end as if nothing had been; `kills.py` says how, and kills more often."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT


@pytest.mark.slow
def test_killed_runs_end_as_undisturbed_ones() -> None:
    """Of three models; what each model's checkpoint holds is tested by `TaskContract`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.kills", "3", "mobilenet_v1", "moflow", "dlrm"],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3 kills survived") == 3
