"""DLRM on 1, 2, 4 and 8 GPUs: the same losses over the same batches, in CUDA graphs, vectors straight to others."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import ROOT
from tests.support.dlrm_ranks import CASES as ALL_CASES
from tests.support.dlrm_ranks import EPOCHS

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

TOLERANCE = {"dot": 2e-5, "half": 5e-3, "torchrec": 2e-5, "cat": 2e-5, "adagrad": 2e-4}


def fbgemm_has_kernels() -> bool:
    """Whether FBGEMM is there, and built for GPUs."""
    try:
        importlib.import_module("fbgemm_gpu")
    except ImportError:
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::permute_2D_sparse_data", "CUDA")


CASES = [name for name in ALL_CASES if name != "torchrec" or fbgemm_has_kernels()]


def started(home: Path, world: int, *arguments: str) -> str:
    """Runs the script on so many GPUs; returns what it printed."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    if world == 1:
        command = [sys.executable]
    ended = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "dlrm_ranks.py"), str(home), *arguments, *CASES],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(paths)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one GPU has begun, and gone on."""
    folder = tmp_path_factory.mktemp("dlrm")
    started(folder, 1, "first")
    started(folder, 1)
    return folder


@pytest.fixture(scope="module", params=[n for n in (2, 4, 8) if n <= torch.cuda.device_count()])
def ranks(request: pytest.FixtureRequest, home: Path) -> int:
    assert "vectors travel in messages" not in started(home, request.param)
    return request.param


def read(home: Path, case: str, world: int) -> list[dict[str, Any]]:
    return [torch.load(home / case / str(world) / f"rank{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize("case", CASES)
def test_losses_on_several_gpus_are_those_of_one(case: str, ranks: int, home: Path) -> None:
    (alone,), found = read(home, case, 1), read(home, case, ranks)
    assert len(alone["losses"]) == (EPOCHS - 1) * 8
    losses = torch.stack([each["losses"] for each in found])
    torch.testing.assert_close(losses.mean(0), alone["losses"], rtol=TOLERANCE[case], atol=TOLERANCE[case])
    assert losses.std(0).min() > 0
    assert alone["losses"][-8:].mean() < alone["losses"][:8].mean()
    assert found[0]["metrics"]["auc"] == pytest.approx(alone["metrics"]["auc"], abs=10 * TOLERANCE[case])
    assert found[0]["phases"]["communication"] > 0


def test_messages_instead_of_direct_stores_change_no_bit(ranks: int, home: Path) -> None:
    """Nor does another run: what ranks read of each other is there, and sums have one order."""
    direct = {case: read(home, case, ranks) for case in CASES if case != "torchrec"}
    assert "vectors travel in messages" in started(home, ranks, "messages")
    for case, found in direct.items():
        again = read(home, case, ranks)
        assert all(torch.equal(a["losses"], b["losses"]) for a, b in zip(found, again, strict=True)), case
