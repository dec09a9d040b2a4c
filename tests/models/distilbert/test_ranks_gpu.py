"""DistilBERT on 1, 2, 4 and 8 GPUs: the same losses and weights over the same global batches, in CUDA graphs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import ROOT
from tests.support.distilbert_ranks import CASES

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

TOLERANCE = {"single": 1e-4, "accumulated": 1e-4, "half": 2e-2, "clipped": 2e-2}


def launch(home: Path, world: int) -> Path:
    """Runs the script on `world` GPUs; returns the folder of the results."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    ended = subprocess.run(
        [*(command if world > 1 else command[:1]), str(ROOT / "tests" / "support" / "distilbert_ranks.py"), str(home)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(paths)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    assert "travel through NCCL" not in ended.stdout + ended.stderr
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch(tmp_path_factory.mktemp("distilbert"), 1)


@pytest.fixture(scope="module", params=[n for n in (2, 4, 8) if n <= torch.cuda.device_count()])
def ranks(request: pytest.FixtureRequest, home: Path) -> int:
    launch(home, request.param)
    return request.param


@pytest.mark.parametrize("case", CASES)
def test_several_gpus_give_the_results_of_one(case: str, ranks: int, home: Path) -> None:
    alone = torch.load(home / f"{case}_1_0.pt")
    results = [torch.load(home / f"{case}_{ranks}_{rank}.pt") for rank in range(ranks)]
    losses = torch.tensor([result["losses"] for result in results])
    torch.testing.assert_close(
        losses.mean(0), torch.tensor(alone["losses"]), rtol=TOLERANCE[case], atol=TOLERANCE[case]
    )
    assert losses.std(0).max() > 0
    assert any((alone["after"][name] - weight).abs().max() > 0.05 for name, weight in alone["before"].items())
    for name, weight in alone["after"].items():
        # Root mean square: rounding may switch a neuron off, which changes its whole row.
        assert (results[0]["after"][name] - weight).square().mean().sqrt() <= TOLERANCE[case] / 2, name
        assert all(torch.equal(results[0]["after"][name], other["after"][name]) for other in results)
