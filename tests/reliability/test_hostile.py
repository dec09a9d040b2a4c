"""What an attacker writes into a checkpoint is not executed; `hostile.py` says how, and tries more."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from src.config.complete import complete_prediction
from src.config.from_file import values_for
from src.config.schema import typed
from src.config.trained import training_choices
from src.errors import UserError
from src.training.checkpoints import read_checkpoint, trained_config, write_checkpoint
from tests.reliability.hostile import MODULE, as_lists, as_tuples, plant
from tests.reliability.kills import MODELS
from tests.support import ROOT
from tests.support.composing import composed


def untouched(model: str) -> dict[str, Any]:
    """Returns what a checkpoint of a model holds of its configs, and nearly no weights."""
    config = composed("train", f"model={model}", "hardware=cpu", "output_dir=unused")
    OmegaConf.resolve(config)
    run = training_choices(typed(config))
    group = next(
        part for part in ("zinc250k", "qm9", "sst2", "criteo", "imagenet") if part == run["datamodule"]["name"]
    )
    configs = {"model_config": OmegaConf.to_container(config.model), "run_config": run | {"group": group}}
    return {"state_dict": {"network.weight": torch.ones(2)}, "epoch": 3, "legs": {"run": "a", "legs": []}, **configs}


def read(path: Path, model: str) -> Any:
    """Returns the configs that a prediction gets of a checkpoint."""
    overrides = [f"model={model}", "hardware=cpu", "output_dir=unused", f"ckpt_path={path}"]
    checkpoint = read_checkpoint(path)
    config = complete_prediction(composed("predict", *overrides), checkpoint.get("run_config"), overrides)
    trained = trained_config(checkpoint, path)
    assert trained is not None
    task = values_for(config.model["task"], trained["task"], path, "model.task", chooses=True)
    return config.datamodule, task


@pytest.mark.parametrize("model", MODELS)
def test_a_hostile_config_is_refused_or_nothing_comes_of_it(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, path = tmp_path / "canary", tmp_path / "x.ckpt"
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(canary)!r}, 'w')\nrun = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PLANTED", "the secret")
    write_checkpoint(untouched(model), path)
    expected = read(path, model)
    refused = 0
    for number in range(4):
        checkpoint = as_lists(untouched(model))
        planted = plant(checkpoint, random.Random(f"{model} {number}"), canary)
        write_checkpoint(as_tuples(checkpoint, set()), path)
        try:
            configs = read(path, model)
            assert planted.is_value or configs == expected, planted
            assert "the secret" not in str(configs), planted
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
        assert not canary.exists() and MODULE not in sys.modules, planted
    assert refused


@pytest.mark.slow
def test_hostile_checkpoints_end_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.hostile", "10", "distilbert"],
        cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(", 0 faults") == 1
