"""A sixth model, built from the files that docs/guides/add_a_model.md lists: it needs no change of a shared file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

EXAMPLE = ROOT / "docs" / "guides" / "small_resnet"
NEEDED = ("src", "conf", "hydra_plugins", "tests", "train.py", "pyproject.toml")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of the example added."""
    home = tmp_path_factory.mktemp("sixth") / "project"
    home.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, home / name)
    added = [file for file in EXAMPLE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    for file in added:
        to = home / file.relative_to(EXAMPLE)
        assert not to.exists(), f"{to} is a file of the project"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    return home


def run(project: Path, *command: str) -> str:
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_it_passes_the_contract_and_the_tests_of_all_models(project: Path) -> None:
    tests = "tests/models/small_resnet", "tests/test_cli.py::test_every_model_is_made_and_has_a_loss"
    options = "-p", "no:cacheprovider", "-m", "not gpu", "-v"
    assert " passed" in run(project, sys.executable, "-m", "pytest", *options, *tests)


@pytest.mark.slow
def test_it_passes_the_type_checker(project: Path) -> None:
    pyright = Path(sys.executable).with_name("pyright")
    run(project, str(pyright), "--pythonpath", sys.executable, "src/models/small_resnet", "tests/models/small_resnet")


@pytest.mark.slow
def test_it_trains_from_the_command_line(project: Path, tmp_path: Path) -> None:
    small = "hardware=cpu", "datamodule.image_size=32", "datamodule.num_classes=10", "hp.batch_size=16"
    short = "fit.max_steps=3", "datamodule.val_batches=1", f"output_dir={tmp_path / 'run'}", f"output_root={tmp_path}"
    options = *small, *short, "execution.kernels=[add]"
    assert "small_resnet" in run(project, sys.executable, "train.py", "model=small_resnet", *options)
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["config"]["execution"]["kernels"] == ["add"]
