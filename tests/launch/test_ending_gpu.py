"""A rank on a GPU that fails or dies while the other one waits for it in a CUDA graph: both are gone within 30 s."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from src.report.record import read_record
from tests.support import ROOT

LIMIT_S, GONE_S = 200, 30
RUN = (
    "model=mobilenet_v1", "datamodule=image_synthetic", "model.task.network.width_multiplier=0.25", "trainer=1x2",
    "precision=amp", "logger=none", "callbacks=bare", "fit.max_steps=100000", "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false",
)  # fmt: skip
REASONS = {"fails": "rank 1: this rank is broken", "dies": "rank 1: ended by SIGKILL (lack of memory?)"}
pytestmark = [
    pytest.mark.gpu, pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]  # fmt: skip


@pytest.mark.parametrize("what", REASONS)
def test_nobody_waits_for_a_rank_that_is_gone(what: str, tmp_path: Path) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    provoked = f"+callbacks.at={{_target_:tests.support.provoking.At,what:{what},step:300,rank:1}}"
    ended = subprocess.run(
        [sys.executable, "train.py", *RUN, f"output_dir={tmp_path / 'run'}", f"output_root={tmp_path}", provoked],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "PYTHONPATH": ":".join(paths)},
    )  # fmt: skip
    ended_s = time.time()
    match = re.search(r"provoked at ([\d.]+)", ended.stderr)
    assert ended.returncode == 1 and match is not None, ended.stderr[-6000:]
    took_s = ended_s - float(match[1])
    print(f"{what}: both were gone after {took_s:.1f} s")
    print(ended.stderr.partition("Timeout (")[2][:3000])  # whom a rank waited for at its end
    assert took_s < GONE_S
    record = read_record(tmp_path / "run")
    assert record.status == "failed" and record.error is not None and record.error.message == REASONS[what]
