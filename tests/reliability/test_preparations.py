"""Prepared data under two processes at once, kills and damage; `preparations.py` says how, and tries more."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

HALVES = (
    ("criteo", "smiles_file", "sst2", "cifar10"),
    ("zinc250k", "qm9", "molecule_file", "click_file", "criteo_synthetic"),
)


@pytest.mark.slow
@pytest.mark.parametrize("names", HALVES)
def test_prepared_data_are_whole_or_refused(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.preparations", "4", *names],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3 prepared at once, 4 killed") == len(names)
