"""No command imports a module from the current folder, nor does a process that it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from src.datamodules.download import _wheel
from src.errors import UserError
from src.system.interpreter import python, safe_path
from tests.support import ROOT
from tests.support.started import LIMIT_S
from tests.support.tiny_mobilenet import tiny_overrides, tiny_prediction
from tests.support.tiny_run import tiny_overrides as tiny_molecules
from tests.support.tiny_run import write_smiles

MODULES = (
    "src", "conf", "hydra_plugins", "train", "torch", "numpy", "yaml", "hydra", "omegaconf", "pytorch_lightning",
    "psutil", "rdkit", "PIL", "pip", "sitecustomize", "usercustomize", "pickle", "json", "socket", "ctypes",
    "multiprocessing", "subprocess", "logging", "tempfile", "random", "struct", "queue",
)  # fmt: skip
STARTS = re.compile(
    r"sys\.executable|get_context|^(import|from) multiprocessing\b|ProcessPoolExecutor|start_processes|\.spawn\(", re.M
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules that leave a note when they are imported."""
    folder = tmp_path / "hostile"
    for name in MODULES:
        (folder / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (folder / name / file).write_text(f"import os\nos.mkdir({str(tmp_path / 'imported')!r})\n")
    return folder


def run(hostile: Path, script: str, *arguments: str) -> None:
    """Runs an entry point in the hostile folder; it must end well and import nothing from there."""
    command = [sys.executable, str(ROOT / script), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    assert not (hostile.parent / "imported").exists()


def test_every_interpreter_is_started_by_the_one_function() -> None:
    files = [file for folder in ("src", "hydra_plugins") for file in (ROOT / folder).rglob("*.py")]
    starting = {str(file.relative_to(ROOT)) for file in files if STARTS.search(file.read_text(encoding="utf-8"))}
    assert starting == {"src/system/interpreter.py", "src/launch/ranks.py"}
    of_ranks = (ROOT / "src/launch/ranks.py").read_text(encoding="utf-8")
    assert "sys.executable" not in of_ranks and of_ranks.count("multiprocessing.get") == 1  # its forks begin none
    assert 'multiprocessing.get_context("fork")' in of_ranks


@pytest.mark.parametrize("words", [("-c", "import src.errors; import json"), ("-m", "src.errors")])
def test_the_interpreter_finds_this_project_alone(words: tuple[str, ...], hostile: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep}  # two empty entries: twice the current folder
    subprocess.run(python(*words), cwd=hostile, env=environment | safe_path(["", "more"]), check=True)
    assert not (hostile.parent / "imported").exists()


def test_pip_is_the_installed_one(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)  # an entry point cleans it: safe_path
    with pytest.raises(UserError, match="pip cannot download no-such-package==1 "), _wheel("no-such-package", "1"):
        pass
    assert not (hostile.parent / "imported").exists()


@pytest.mark.slow
def test_a_preparation(hostile: Path, tmp_path: Path) -> None:
    mine = [text for text in tiny_molecules(tmp_path) if text.startswith(("datamodule", "+datamodule", "data_root"))]
    write_smiles(tmp_path / "my.smiles")
    run(hostile, "prepare.py", *mine, f"output_root={tmp_path}")


@pytest.mark.slow
def test_a_sweep_of_a_training_on_two_ranks_a_prediction_and_a_report(hostile: Path, tmp_path: Path) -> None:
    mine = [text for text in tiny_overrides(tmp_path) if not text.startswith("output_dir")]
    run(hostile, "train.py", "-m", *mine, "trainer=1x2", "seed=1", f"hydra.sweep.dir={tmp_path / 'sweep'}")
    folder = tmp_path / "sweep" / "0"
    run(hostile, "predict.py", *tiny_prediction(tmp_path, f"ckpt_path={folder}/checkpoints/last.ckpt"))
    run(hostile, "report.py", str(folder))
