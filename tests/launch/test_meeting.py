"""Ranks that cannot meet: one line that says why, and no process that waits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.refusing import the_error_line
from tests.support.started import LIMIT_S
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow

SLURM = {
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "2",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train",
    "SLURM_NODELIST": "'no host'",
}  # fmt: skip


def test_a_host_whose_name_does_not_resolve(tmp_path: Path) -> None:
    """Its name has a space, so that no server is asked for it."""
    command = [sys.executable, "train.py", *tiny_overrides(tmp_path), "trainer=2x1", "trainer.patience_s=0.5"]
    environment = os.environ | SLURM | {"MASTER_ADDR": "no host"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 2, ended.stderr
    assert the_error_line(ended.stderr) == (
        "the ranks cannot meet: the name of rank 0's host, no host, does not resolve here (Name or service not known), "
        "for 0.5 s (trainer.patience_s); set MASTER_ADDR on all nodes to an address of that host that they reach, or "
        "give torchrun --local-addr=ADDRESS"
    )


def test_a_machine_without_a_loopback_interface(tmp_path: Path) -> None:
    alone = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("needs Linux's network namespaces")
    command = [*alone, sys.executable, "train.py", *tiny_overrides(tmp_path), "trainer=1x2"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 2, ended.stderr
    assert the_error_line(ended.stderr) == (
        "the ranks cannot meet: this machine's loopback interface does not work (Network is unreachable); switch it on "
        "(ip link set lo up), or choose trainer=1x1"
    )
