"""A sweep by submitit on this machine, without SLURM."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.started import LIMIT_S
from tests.support.sweep_ends import assert_ends_in_best_and_page, assert_goes_on
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.cluster


def swept(home: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """`python train.py -m` by submitit_local, in `home`/sweep."""
    mine = [word for word in tiny_overrides(home) if not word.startswith("output_dir=")]
    sweep = "-m", "hydra/launcher=submitit_local", f"hydra.sweep.dir={home / 'sweep'}"
    command = [sys.executable, "train.py", *mine, *sweep, *overrides]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize("sweeper", ["grid", "basic"])
def test_a_sweep_ends_in_the_best_job_and_the_page(sweeper: str, tmp_path: Path) -> None:
    done = swept(tmp_path, "seed=1,2", f"hydra/sweeper={sweeper}")
    assert done.returncode == 0, done.stderr
    assert_ends_in_best_and_page(done.stdout, tmp_path / "sweep")


def test_a_sweep_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    assert swept(tmp_path, "seed=1,2").returncode == 0
    assert_goes_on(lambda *overrides: swept(tmp_path, *overrides), tmp_path / "sweep")


def test_failed_jobs_are_named_with_the_exit_code_2(tmp_path: Path) -> None:
    done = swept(tmp_path, "ckpt_path=null,missing.ckpt")
    assert done.returncode == 2
    assert "job 1 failed: UserError: " in done.stdout and "missing.ckpt" in done.stdout
    assert done.stderr.splitlines()[-1] == "error: 1 of 2 jobs are not done: 1; the reasons are above"
