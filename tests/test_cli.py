"""The five entry points: short, quick where nothing is trained, and every config they can name makes its object."""

import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger

from src.config.explain import overrides_first
from src.config.settings import CONF
from src.config.values import check_training
from src.datamodules.base import DataModule
from src.training.task import Task
from tests.support import ROOT, tiny_distilbert, tiny_dlrm, tiny_se3
from tests.support.composing import composed
from tests.support.tiny_run import NETWORK

EXTRAS = ("mlflow", "trackio")  # loggers whose packages `make env` does not install
ENTRY_POINTS = ("train.py", "predict.py", "prepare.py", "export.py", "report.py")
HEAVY = {"torch", "pytorch_lightning", "rdkit", "numpy", "matplotlib"}
# Runs an entry point and then names the heavy packages that it loaded.
RUNNER = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("heavy:", *sorted({HEAVY} & set(sys.modules)), file=sys.stderr)
"""
SIZES = {  # small sizes of models that are built
    "moflow": [f"model.task.network.{size}" for size in NETWORK],
    "se3_transformer": [f"model.task.network.{size}" for size in tiny_se3.NETWORK],
    "dlrm": [*tiny_dlrm.SIZES, tiny_dlrm.TABLES],
    "distilbert": [*tiny_distilbert.MODEL],
    "mobilenet_v1": ["model.task.network.width_multiplier=0.25", "datamodule.image_size=32"],
    "dlrm_dcnv2": [*tiny_dlrm.SIZES, tiny_dlrm.TABLES],
}


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_an_entry_point_is_short(entry: str) -> None:
    assert len((ROOT / entry).read_text().splitlines()) < 40


def printed(*arguments: str) -> str:
    """Returns what an entry point prints; it must do so without loading anything heavy."""
    command = [sys.executable, "-c", RUNNER, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.stderr.strip() == "heavy:"
    assert ended.returncode == 0
    return ended.stdout


def test_the_published_batch_shows_without_torch() -> None:
    config = OmegaConf.create(printed("train.py", "model=dlrm", "trainer=2x8", "+fix_hp=max_bs", "--cfg", "job"))
    assert config.hp == {"batch_size": 2752512, "batch_per": "global", "lr": 24.0, "accumulate": 1}
    assert config.trainer == {"name": "2x8", "num_nodes": 2, "devices": 8, "patience_s": 60.0, "crowded": False}
    assert "${" not in OmegaConf.to_yaml(config)


def test_options_may_stand_between_overrides() -> None:
    arguments = ["hp.lr=1", "-m", "seed=1,2", "--config-dir", "x", "~fix_hp"]
    assert overrides_first(arguments) == ["hp.lr=1", "seed=1,2", "~fix_hp", "-m", "--config-dir", "x"]
    config = OmegaConf.create(printed("train.py", "experiment=dlrm_quick", "--cfg", "job", "hp.lr=3"))
    assert config.hp.lr == 3.0


@pytest.mark.parametrize("entry", ["predict.py", "prepare.py"])
def test_the_other_entry_points_show_their_config_without_torch(entry: str) -> None:
    assert OmegaConf.create(printed(entry, "--cfg", "job")).datamodule.name == "zinc250k"


@pytest.mark.parametrize(
    "command", ["train.py hp.lr=-1", "train.py fit.max_epochs=0", "predict.py num_samples=0", "prepare.py seed=-1"]
)
def test_a_value_that_is_not_allowed_is_told_without_torch(command: str, tmp_path: Path) -> None:
    # Another test looks for what is left behind in the usual folder.
    words = [sys.executable, "-c", RUNNER, *command.split(), f"output_root={tmp_path}"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    line, heavy = ended.stderr.strip().splitlines()
    assert line.startswith("error: ") and "is not allowed" in line
    assert (heavy, ended.returncode) == ("heavy:", 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "groups"),
    [
        ("train.py", "model datamodule trainer precision hardware fix_hp callbacks logger experiment"),
        ("predict.py", "model datamodule precision hardware"),
        ("prepare.py", "datamodule"),
        ("export.py", ""),
        ("report.py", ""),
    ],
)
def test_help_begins_with_examples_and_names_the_groups(entry: str, groups: str) -> None:
    text = printed(entry, "--help")
    assert f"python {entry} " in "\n".join(text.splitlines()[3:5])
    assert len(text.splitlines()) < 40 and max(map(len, text.splitlines())) <= 120
    for group in groups.split():
        assert f"\n{group}: {names(group)[0]}, {names(group)[1]}" in text


def test_the_shell_completion_is_a_script_that_bash_can_read() -> None:
    script = printed("train.py", "-sc", "install=bash")
    assert "complete " in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def resolved(*overrides: str) -> DictConfig:
    """Returns a resolved training config that writes nowhere."""
    config = composed("train", *overrides, "output_dir=nowhere", "hardware=cpu")
    OmegaConf.resolve(config)
    return config


def names(group: str) -> list[str]:
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


@pytest.mark.slow
def test_every_model_is_made_and_has_a_loss() -> None:
    for name in names("model"):
        config = resolved(f"model={name}", *SIZES.get(name, ()))
        task: Task = instantiate(config.model.task)
        assert task.final_metric.name
        torch.manual_seed(0)
        batch = task.example_batch(4)
        task.prepare_first_step([batch])
        assert task.loss(batch)["loss"].isfinite()
        assert task.configure_optimizers().param_groups[0]["lr"] == config.hp.lr


@pytest.mark.slow
def test_every_datamodule_is_made() -> None:
    columns = ["datamodule.source.numerical=[a]", "datamodule.source.categorical=[b]"]
    overrides = {"smiles_file": ["datamodule.source.file=my.smiles"], "sentences": ["datamodule.source.file=my.csv"]}
    overrides["click_file"] = ["datamodule.source.file=my.csv", *columns]
    for name in names("datamodule"):
        config = resolved(f"datamodule={name}", *overrides.get(name, []))
        assert isinstance(instantiate(config.datamodule), DataModule)


@pytest.mark.parametrize("group", ["callbacks", "logger"])
@pytest.mark.slow
def test_every_callback_and_logger_is_made(group: str, tmp_path: Path) -> None:
    kind: Any = {"callbacks": pl.Callback, "logger": Logger}[group]
    for name in names(group):
        if name in EXTRAS and find_spec(name) is None:
            continue  # tests/callbacks/test_local_loggers.py has its line
        config = resolved(f"{group}=[{name}]" if group == "logger" else f"{group}={name}", f"output_root={tmp_path}")
        parts = instantiate(config[group] or {}, _convert_="object").values()
        assert all(isinstance(part, kind) for part in parts)
        assert len(parts) == len(config[group])


@pytest.mark.slow
def test_every_experiment_composes() -> None:
    for name in names("experiment"):
        check_training(resolved(f"experiment={name}"))


def test_ctrl_c_in_preparing_says_what_the_same_command_does(tmp_path: Path) -> None:
    (tmp_path / "my.smiles").write_text("CCO\n")
    source = {"_target_": "tests.support.interrupting.load", "file": tmp_path / "my.smiles"}
    command = [sys.executable, "prepare.py", "datamodule=smiles_file"]
    command += [f"data_root={tmp_path}", f"output_root={tmp_path}"]
    command += [f"datamodule.source.{key}={value}" for key, value in source.items()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, preexec_fn=heeded)
    assert ended.returncode == 130
    assert ended.stderr == ("run the same command to go on: what is finished is kept\ninterrupted\n")


BEGINNING = """
import os, signal
from src.cli import run_entry_point
run_entry_point(print, lambda arguments: os.kill(os.getpid(), signal.SIGINT))
"""
END = """
import gc, os, signal, sys
import torch
from src.cli import run_entry_point

def kill(frame, event, called):
    if called is gc.collect:
        os.kill(os.getpid(), signal.SIGINT)

def main():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    sys.setprofile(kill)

run_entry_point(main)
"""


@pytest.mark.parametrize("code", [BEGINNING, pytest.param(END, marks=pytest.mark.slow)])
def test_ctrl_c_before_a_run_or_after_it_ends_in_one_line(code: str) -> None:
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, preexec_fn=heeded)
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
