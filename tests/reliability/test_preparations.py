"""Prepared data under two processes at once, kills and damage; `preparations.py` says how, and tries more."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

# Clicks of three kinds have files of their own; the other data sets are written by `prepared.prepare`, as these two.
NAMES = "criteo", "click_file", "criteo_synthetic", "smiles_file", "cifar10"


@pytest.mark.slow
def test_prepared_data_are_whole_or_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.preparations", "2", *NAMES],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 2 prepared at once, 2 killed") == len(NAMES)
