"""A checkpoint's task with its weights, in evaluation mode, and the config of its preprocessing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from src.config import schema
from src.config.complete import complete_prediction
from src.config.from_file import is_withheld, values_for
from src.config.instantiate import instantiate
from src.config.schema import PredictConfig
from src.config.settings import CONF
from src.config.trained import RUN, is_in, named_choices
from src.config.values import check_values
from src.config.versions import BASE
from src.errors import UserError
from src.pretrained.hub import downloaded
from src.pretrained.reading import read_export
from src.training.checkpoints import load_weights, naming_version, read_checkpoint, trained_config
from src.training.predictor import Inference
from src.training.task import Task


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds: the task with its network, in evaluation mode, and predict.py's config for it."""

    task: Task
    config: PredictConfig
    checkpoint: dict[str, Any]


def open_trained(path: Path | str, *overrides: str, device: torch.device | str = "cpu") -> Trained:
    """Returns the task of a checkpoint on the device, as predict.py would make it.

    Nothing is written, no seed and no flag of the process is set, and Hydra of the calling program is left as it is.

    Args:
        overrides: as on predict.py's command line, such as precision=fp32 or execution.kernels=off.

    Raises UserError for a checkpoint that is missing, damaged, holds code, or is of another version of this project.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device={device} is not supported; expected cpu or cuda")
    checkpoint = read_export(Path(path)) if Path(path).is_dir() else read_checkpoint(Path(path))
    trained = trained_config(checkpoint, Path(path))
    if trained is None:
        raise UserError(f"{path}: does not say which model it is of; give a checkpoint that train.py wrote")
    if not is_in(trained["name"], "model"):
        raise UserError(
            f"{path} is a checkpoint of {trained['name']!r:.80}, which is not here: conf/model has no such file"
        )
    hardware = ["hardware=cpu"] if device.type == "cpu" else []
    given = ["output_dir=.", "data_root=data", *hardware, *overrides]
    named = [*named_choices(checkpoint, given), *given]
    schema.register()
    with naming_version(checkpoint), own_hydra():
        config = compose("predict", named)
        config.ckpt_path = str(path)  # not an override: a path may have signs that Hydra reads
        completed = complete_prediction(config, checkpoint.get(RUN), named)
    with naming_version(checkpoint), torch.random.fork_rng(devices=[]):
        completed = with_trained_model(completed, checkpoint, named)
        task = load_task(completed, checkpoint)
    task.to(device)
    return Trained(task, completed, checkpoint)


def load(path: Path | str, *overrides: str, device: torch.device | str | None = None) -> Any:
    """Returns the trained network of a checkpoint with its preprocessing, ready to call: its model's Predictor.

    Args:
        path: a last.ckpt or best.ckpt of a run, or a folder that export.py wrote.
        overrides: as on predict.py's command line, such as precision=bf16 or batch_size=64.
        device: cpu or cuda; the first GPU if there is one.

    Raises UserError as `open_trained`.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    trained = open_trained(path, *overrides, device=device)
    data, config = partial(instantiate, trained.config.datamodule, "datamodule"), trained.config
    return trained.task.predictor(Inference(data, config.batch_size, config.precision.lightning))


def from_pretrained(
    name: Path | str, *overrides: str, device: torch.device | str | None = None, revision: str | None = None
) -> Any:
    """Returns what `load` returns, of an export on the Hugging Face Hub. No code is downloaded.

    Args:
        name: USER/NAME of the Hub, as export.py's push; or a folder that export.py wrote.
        overrides, device: see `load`.
        revision: a branch, tag or commit of the repository.

    Raises UserError as `open_trained`, and where the Hub has no such repository or does not answer.
    """
    folder = Path(name) if Path(name).is_dir() else downloaded(str(name), revision)
    return load(folder, *overrides, device=device)


@contextmanager
def own_hydra() -> Iterator[None]:
    """Composes from this project's conf, also within a program that runs under Hydra itself."""
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), **BASE):
            yield
    finally:
        GlobalHydra.instance().hydra = running


def with_trained_model(
    config: PredictConfig, checkpoint: dict[str, Any] | None, overrides: Sequence[str]
) -> PredictConfig:
    """Returns the config with the model that the checkpoint's weights belong to."""
    if checkpoint is None or config.ckpt_path is None:
        return config
    path, model = Path(config.ckpt_path), config.model
    trained = trained_config(checkpoint, path)
    if trained is None:
        return config
    if trained["name"] != model["name"]:
        raise UserError(f"{path} is a checkpoint of {trained['name']}; leave out model={model['name']}")
    values = values_for(model["task"], trained["task"], path, "model.task", chooses=True)
    task = with_secrets(values, model["task"], "model.task", config.ckpt_path, overrides)
    check_values("model.task.", task)
    return replace(config, model=model | {"task": task})


def load_task(config: PredictConfig, checkpoint: dict[str, Any] | None) -> Task:
    """Returns the task with its checkpoint's weights, or random ones, in evaluation mode on the device."""
    task: Task = instantiate(config.model["task"], "model.task")
    task.accelerate(config.execution.kernels)
    if checkpoint is not None and config.ckpt_path is not None:
        load_weights(task, checkpoint, Path(config.ckpt_path))
        task.on_load_checkpoint(checkpoint)
    elif task.is_trained:
        print(f"no ckpt_path: the weights are {config.model['task'].get('weights')}")
    else:
        print("no ckpt_path: the weights are random, the figures are good for timing alone")
    task.batch_size, task.activation_bytes = config.batch_size, config.precision.activation_bytes
    task.to("cuda" if config.hardware.accelerator == "cuda" else "cpu").eval()
    if config.precision.lightning == "16-true":
        task.network.half()
    return task


def with_secrets(trained: Any, here: Any, key: str, checkpoint: str, overrides: Sequence[str]) -> Any:
    """Returns the trained config at `key`, with what its checkpoint leaves out as `here`, the config there, has it.

    Values of the environment and of keys named like a secret are left out. Raises UserError for one that no override
    gives: the default would be another network's, and what a checkpoint names of the environment is not looked up.
    """
    if is_withheld(trained):
        if not any(text.lstrip("+").startswith(f"{key}=") for text in overrides):
            raise UserError(
                f"{checkpoint} does not hold {key}, which was a secret or came from the environment: "
                f"give it again as {key}=VALUE"
            )
        return here
    if isinstance(trained, dict):
        inner = here if isinstance(here, dict) else {}
        return {
            name: with_secrets(part, inner.get(name), f"{key}.{name}", checkpoint, overrides)
            for name, part in trained.items()
        }
    if isinstance(trained, list):
        inner = dict(enumerate(here)) if isinstance(here, list) else {}
        return [with_secrets(part, inner.get(i), f"{key}.{i}", checkpoint, overrides) for i, part in enumerate(trained)]
    return trained
