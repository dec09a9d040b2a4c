"""A sweep on a Ray cluster of this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from src.report.record import read_record
from tests.support import ROOT
from tests.support.started import LIMIT_S
from tests.support.sweep_ends import assert_ends_in_best_and_page, assert_goes_on
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.cluster


def test_ray_runs_the_jobs_of_a_sweep_once(tmp_path: Path) -> None:
    mine = [word for word in tiny_overrides(tmp_path) if not word.startswith("output_dir=")]
    ray = "-m", "hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2", f"hydra.sweep.dir={tmp_path / 'sweep'}"

    def swept(*overrides: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "train.py", *mine, *ray, *overrides]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)

    done = swept("seed=1,2")
    assert done.returncode == 0, done.stderr
    assert_ends_in_best_and_page(done.stdout, tmp_path / "sweep")
    for number in (0, 1):
        record = read_record(tmp_path / "sweep" / str(number))
        assert (record.status, record.config["seed"]) == ("done", number + 1)
    assert_goes_on(swept, tmp_path / "sweep")
