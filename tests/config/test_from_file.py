"""A file gives values for known keys, by their types; what it names is made only where our own code says so."""

import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from src.config.complete import complete_prediction
from src.config.from_file import values_for
from src.errors import UserError
from tests.support.composing import composed

PATH = Path("x.ckpt")
MODELS = "moflow", "se3_transformer", "distilbert", "dlrm", "dlrm_dcnv2", "mobilenet_v1"
SPAWN = "setuptools._distutils.spawn.spawn"


def task_of(model: str) -> dict[str, Any]:
    config = composed("predict", f"model={model}", "hardware=cpu", "output_dir=unused")
    return OmegaConf.to_container(config.model.task)  # type: ignore[return-value]


def resolved(model: str) -> dict[str, Any]:
    """Returns the task of a training's config, as its checkpoint holds it."""
    config = composed("train", f"model={model}", "hardware=cpu", "output_dir=unused")
    OmegaConf.resolve(config)
    return OmegaConf.to_container(config.model.task)  # type: ignore[return-value]


@pytest.mark.parametrize("model", MODELS)
def test_the_config_of_a_training_is_taken_as_it_is(model: str) -> None:
    assert values_for(task_of(model), resolved(model), PATH, "model.task", chooses=True) == resolved(model)


@pytest.mark.parametrize("model", ["moflow", "se3_transformer"])
@pytest.mark.parametrize("value", ["reference", {"_target_": "os.system"}])
def test_a_key_that_went_is_left_out(model: str, value: Any) -> None:
    """In checkpoints of before execution.kernels; elsewhere it is a wrong key."""
    task = resolved(model)
    old = {**task, "network": task["network"] | {"execution": value}}
    assert values_for(task_of(model), old, PATH, "model.task", chooses=True) == task
    with pytest.raises(UserError, match=r"model\.task has no key 'execution'"):
        values_for(task_of(model), {**task, "execution": value}, PATH, "model.task", chooses=True)


ADAGRAD = "src.training.adagrad.Adagrad"


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("moflow", "optimizer", {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1}),
        ("moflow", "optimizer", {"_target_": "torch.optim.adamw.AdamW", "_partial_": True, "betas": [0.9, 0.99]}),
        ("dlrm", "optimizer", {"_target_": ADAGRAD, "_partial_": True, "lr": 0.1}),
        ("dlrm", "sharding", {"cat_0.bin": "row_wise"}),
        ("distilbert", "schedule", {"_target_": "src.training.schedule.Cosine", "interval": "step"}),
        ("moflow", "schedule", {"_target_": "src.training.schedule.Linear", "total": 9}),
        ("moflow", "generated_molecules", {"_target_": "src.models.moflow.generated_molecules.GeneratedMolecules"}),
    ],
)
def test_a_class_that_the_argument_is_for_is_taken(model: str, key: str, value: Any) -> None:
    assert values_for(task_of(model), {**resolved(model), key: value}, PATH, "model.task", chooses=True)[key] == value


HOSTILE = [
    {"_target_": "os.system", "command": "true"},
    {"_target_": SPAWN, "_partial_": True, "cmd": ["true"]},
    {"_target_": "src.system.workers.WorkerPool"},
    {"_target_": "src.training.task.torch.load"},  # reached through a module of ours
    {"_target_": "src.training.task.wanted"},
    {"_target_": "torch.optim.lr_scheduler.torch.hub.load"},
    {"_target_": "torch.optim.Optimizer", "_partial_": True},
    {"_target_": "src.models.nowhere.Task"},
    {"_target_": "src.models."},
    {"_target_": "antigravity.fly"},
    {"_target_": ["os.system"]},
    {"_target_": 7},
    {"_target_": None},
    {"cmd": ["true"]},
    [{"_target_": "os.system"}],
    "os.system",
]


@pytest.mark.parametrize("chooses", [True, False])
@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("model", MODELS)
def test_anything_else_is_refused_in_every_place(model: str, value: Any, chooses: bool) -> None:
    here = task_of(model)
    for key in (key for key, part in here.items() if isinstance(part, dict) and "_target_" in part):
        hostile = {**resolved(model), key: value}
        if not chooses and isinstance(value, dict) and "_target_" in value:
            hostile[key] = {**value, "unknown_argument": 1}  # the name is not looked at
        with pytest.raises(UserError) as raised:
            values_for(here, hostile, PATH, "model.task", chooses)
        assert str(raised.value).startswith(f"{PATH}: model.task.{key}") and "\n" not in str(raised.value)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target._target_", "os.system"), ("network._target_", "os.system"), ("network.num_layers", 3),
        ("_args_", []), ("_recursive_", False), ("_convert_", "all"), ("", 1), ("__class__", "x"), ("unknown", 1),
        ("mirror", {"_target_": "os.system"}), ("mirror", ["x"]), ("mirror", "${oc.env:HOME}x", ), ("mirror", "???"),
        ("target", {"_target_": "os.system"}), ("target", {"homo": {"_target_": "os.system"}}),
        ("target", {"homo": "${oc.env:HOME}"}), ("elements", ["${oc.env:HOME}"]), ("elements", [["C"]]),
        ("elements", ["???"]), ("quantity", float("nan")), ("target", {"homo": float("inf")}), ("elements", [{}]),
    ],
)  # fmt: skip
def test_values_of_other_keys_or_types_are_refused(key: str, value: Any) -> None:
    hostile = {**resolved("se3_transformer"), key: value}
    if value == "${oc.env:HOME}x":  # the caller leaves it out
        assert values_for(task_of("se3_transformer"), hostile, PATH, "model.task", chooses=True)[key] == value
        return
    with pytest.raises(UserError) as raised:
        values_for(task_of("se3_transformer"), hostile, PATH, "model.task", chooses=True)
    assert str(raised.value).startswith(f"{PATH}: model.task") and "\n" not in str(raised.value)


DATA = {
    "moflow": "smiles_file", "se3_transformer": "molecule_file", "distilbert": "sst2", "dlrm": "criteo_resident",
    "mobilenet_v1": "image_synthetic",
}  # fmt: skip


@pytest.mark.parametrize(
    "hostile",
    [
        {"test_batch_size._target_": SPAWN, "test_batch_size.cmd": ["touch", "CANARY"]},
        {"batch_size._target_": "joblib.load", "batch_size.filename": "CANARY"},
        {"seed._target_": "this.x"},
        {"seed": {"_target_": "this.x"}},
        {"seed": ["this.x"]},
        {"name": {"_target_": "builtins.open", "file": "CANARY", "mode": "w"}},
        {"new": {"_target_": SPAWN, "cmd": ["touch", "CANARY"]}},
        {"name.x": 1},
        {"_args_": ["CANARY"]},
    ],
)
@pytest.mark.parametrize("model", DATA)
def test_a_hostile_config_of_the_data_is_refused(
    model: str, hostile: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    overrides = f"model={model}", "hardware=cpu", "output_dir=unused"
    trained = {"group": DATA[model], "precision": "fp32", "datamodule": hostile}
    with pytest.raises(UserError, match=r"run_config\.datamodule"):
        complete_prediction(composed("predict", *overrides), trained, overrides)
    assert "this" not in sys.modules and not [*tmp_path.iterdir()]


@pytest.mark.parametrize("value", ["${oc.env:SECRET}", "a ${oc.env:SECRET} b", "${first:a}", "${seed"])
def test_an_interpolation_of_a_file_is_left_out(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    overrides = "model=distilbert", "hardware=cpu", "output_dir=unused"
    trained = {"group": "sst2", "precision": "fp32", "datamodule": {"name": value, "raw": value, "vocabulary": value}}
    config = complete_prediction(composed("predict", *overrides), trained, overrides)
    assert (config.datamodule["name"], config.datamodule["raw"]) == ("sst2", None)
    assert config.datamodule["vocabulary"] == "distilbert-base-uncased"
