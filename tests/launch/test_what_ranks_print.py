"""What two ranks of `train.py` print: every line once."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.reliability.kills import MODELS
from tests.support import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_two_ranks_print_every_line_once(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "train.py", *MODELS[model](tmp_path), "trainer=1x2", f"output_dir={tmp_path / 'run'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert not [line for line, times in Counter(printed).items() if times > 1]
    assert not [line for line in printed if "[INFO]" in line or "Warning" in line]
