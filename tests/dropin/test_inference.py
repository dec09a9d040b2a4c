"""run_inference.py of RFdiffusion with a random checkpoint: with the wheel, and with the package it carries along."""

import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.dropin import rfdiffusion
from tests.dropin.originals import VARIABLE, clone
from tests.library.test_wheel import run, run_command
from tests.support import ROOT

STEPS, RESIDUES = 50, 20
FOLDERS = "rfdiffusion", "config", "scripts", "examples/input_pdbs"
DGL = """
import sys
from contextlib import nullcontext
import torch
from tests.dropin.originals import dgl_modules

if not torch.cuda.is_available():
    torch.cuda.nvtx.range = nullcontext
sys.modules.update(dgl_modules())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few of the network's 40 blocks."""
    path = tmp_path_factory.mktemp("checkpoint") / "random.pt"
    rfdiffusion.save_checkpoint(path, n_extra_block=1, n_main_block=2, n_ref_block=1)
    return path


def inference(home: Path, checkpoint: Path, path: list[Path]) -> None:
    """Runs the script of the clone in `home`, with modules of `path` before the environment's."""
    home.joinpath("pyrsistent.py").write_text("v = None\n")  # imported by RFdiffusion, and used nowhere
    words = f"inference.ckpt_override_path={checkpoint}", "inference.output_prefix=out/design"
    sizes = f"contigmap.contigs=[{RESIDUES}-{RESIDUES}]", f"diffuser.T={STEPS}", "inference.num_designs=1"
    schedules = f"inference.schedule_directory_path={checkpoint.parent}"  # of both sides: it takes 10 s to compute
    python_path = os.pathsep.join(map(str, [*path, home]))
    script = str(home / "scripts/run_inference.py")
    command = [sys.executable, script, *words, *sizes, "inference.deterministic=True", schedules]
    run_command(command, home, PYTHONPATH=python_path, OMP_NUM_THREADS="1")


def written(home: Path) -> dict[str, Any]:
    """Returns the coordinates of each file, [models][atoms, 3], and the predicted quality of each step."""
    files = sorted(home.glob("out/**/*.pdb"))
    with (home / "out/design_0.trb").open("rb") as file:
        quality = pickle.load(file)["plddt"]
    return {**{path.name: coordinates(path) for path in files}, "plddt": torch.as_tensor(quality)}


def coordinates(path: Path) -> list[Any]:
    models = path.read_text().split("ENDMDL")
    rows = [[line for line in model.splitlines() if line.startswith("ATOM")] for model in models]
    return [np.array([[float(row[i : i + 8]) for i in (30, 38, 46)] for row in part]) for part in rows if part]


@pytest.mark.slow
@pytest.mark.skipif(clone("RFdiffusion") is None, reason=f"{VARIABLE} has no RFdiffusion")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of RFdiffusion
def test_fifty_steps_equal_those_with_the_vendored_package(wheel: Path, checkpoint: Path, tmp_path: Path) -> None:
    package = clone("RFdiffusion")
    assert package is not None
    results = []
    for side in ("ours", "theirs"):
        home = tmp_path / side
        for folder in FOLDERS:
            shutil.copytree(package.parents[1] / folder, home / folder)
        if side == "ours":
            run("-m", "pip", "install", "-q", "--no-deps", "--target", str(home / "site"), str(wheel), cwd=tmp_path)
            module = home / "rfdiffusion/util_module.py"
            text = module.read_text()
            assert "\nimport dgl\n" in text
            module.write_text(text.replace("\nimport dgl\n", "\nfrom se3_transformer import graphs as dgl\n"))
            path = [home / "site"]
        else:
            home.joinpath("dgl.py").write_text(DGL)
            path = [ROOT, package]
        inference(home, checkpoint, path)
        results.append(written(home))
    ours, theirs = results
    assert ours.keys() == theirs.keys() and len(ours) == 4
    assert torch.isfinite(ours["plddt"]).all() and ours["plddt"].shape == (STEPS, RESIDUES)
    assert float((ours["plddt"] - theirs["plddt"]).abs().max()) < 1e-5
    for name in ours.keys() - {"plddt"}:
        assert len(ours[name]) == len(theirs[name]) == (STEPS if "traj" in name else 1)
        for model, other in zip(ours[name], theirs[name], strict=True):
            assert model.shape == other.shape and np.abs(model).max() > 5
            assert np.abs(model - other).max() < 0.0025, name  # files have three digits
