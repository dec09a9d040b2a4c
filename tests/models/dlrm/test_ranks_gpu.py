"""DLRM on 1, 2, 4 and 8 GPUs: the same losses over the same batches, in CUDA graphs, by peer memory and all-to-all."""

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
    """Returns whether FBGEMM is installed with GPU kernels."""
    try:
        importlib.import_module("fbgemm_gpu")
    except ImportError:
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key("fbgemm::permute_2D_sparse_data", "CUDA")


CASES = [name for name in ALL_CASES if name != "torchrec" or fbgemm_has_kernels()]


def launch(home: Path, world: int, *arguments: str) -> str:
    """Runs the script on `world` GPUs; returns its output."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    if world == 1:
        command = [sys.executable]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "PYTHONFAULTHANDLER": "1"}
    ended = subprocess.run(
        [*command, str(ROOT / "tests" / "support" / "dlrm_ranks.py"), str(home), *arguments, *CASES],
        cwd=ROOT, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the first epoch's checkpoints and the results of one GPU."""
    folder = tmp_path_factory.mktemp("dlrm")
    launch(folder, 1, "first")
    launch(folder, 1)
    return folder


@pytest.fixture(scope="module", params=[n for n in (2, 4, 8) if n <= torch.cuda.device_count()])
def ranks(request: pytest.FixtureRequest, home: Path) -> int:
    assert "exchanged by all-to-all" not in launch(home, request.param)
    return request.param


def read(home: Path, case: str, world: int) -> list[dict[str, Any]]:
    return [torch.load(home / case / str(world) / f"rank{rank}.pt") for rank in range(world)]


@pytest.mark.parametrize("case", CASES)
def test_losses_on_several_gpus_equal_those_of_one(case: str, ranks: int, home: Path) -> None:
    (alone,), results = read(home, case, 1), read(home, case, ranks)
    assert len(alone["losses"]) == (EPOCHS - 1) * 8
    losses = torch.stack([result["losses"] for result in results])
    torch.testing.assert_close(losses.mean(0), alone["losses"], rtol=TOLERANCE[case], atol=TOLERANCE[case])
    assert losses.std(0).min() > 0
    assert alone["losses"][-8:].mean() < alone["losses"][:8].mean()
    assert results[0]["metrics"]["auc"] == pytest.approx(alone["metrics"]["auc"], abs=10 * TOLERANCE[case])
    assert results[0]["phases"]["communication"] > 0


def test_all_to_all_gives_the_bits_of_peer_memory(ranks: int, home: Path) -> None:
    """A second run gives the same bits as well: barriers order all reads, and sums have one order."""
    by_peer_memory = {case: read(home, case, ranks) for case in CASES if case != "torchrec"}
    assert "exchanged by all-to-all" in launch(home, ranks, "all_to_all")
    for case, results in by_peer_memory.items():
        again = read(home, case, ranks)
        assert all(torch.equal(a["losses"], b["losses"]) for a, b in zip(results, again, strict=True)), case
