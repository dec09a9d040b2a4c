"""From config to objects: Hydra's `instantiate` with errors for the person at the keyboard."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hydra import utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from src.callbacks.loggers import settle_loggers
from src.errors import UserError


def check_packages(config: DictConfig) -> None:
    """Raises UserError where a package that the model or the datamodule imports is not installed."""
    keys = {"model": "model.task", "datamodule": "datamodule"}
    targets = {kind: OmegaConf.select(config, key)._target_ for kind, key in keys.items() if kind in config}
    for kind, target in targets.items():
        try:
            import_module(target.rpartition(".")[0])
        except ModuleNotFoundError as error:
            raise UserError(f"{kind}={config[kind].name} needs the package {error.name}; install it with pip") from None


def instantiate(config: Any, **options: Any) -> Any:
    """Returns what Hydra instantiates. Raises what the constructor raised; UserError for an unknown key."""
    try:
        return utils.instantiate(config, **options)
    except InstantiationException as wrapped:
        cause = wrapped.__cause__ or wrapped
        _, unknown, key = str(cause).partition("got an unexpected keyword argument ")
        if isinstance(cause, TypeError) and unknown:
            where = str(wrapped).rpartition("full_key: ")[2]
            raise UserError(f"{where} has no key {key}; see `--cfg job` for every key there is") from cause
        raise cause from None


@dataclass(frozen=True)
class Parts:
    """What a training config describes."""

    datamodule: Any
    task: Any
    execution: Any
    callbacks: list[Any]
    loggers: list[Any]


def instantiate_parts(config: DictConfig) -> Parts:
    """Returns the parts of a completed training config.

    Raises UserError where a package is missing, a logger's key is given as a value, or task and datamodule do not
    belong together.
    """
    check_packages(config)
    settle_loggers(config)
    datamodule, task = instantiate(config.datamodule), instantiate(config.model.task)
    task.check_datamodule(datamodule)
    execution = instantiate(config.execution, _convert_="object")
    callbacks = instantiate(config.callbacks or {}, _convert_="object")
    return Parts(datamodule, task, execution, [*callbacks.values()], [*instantiate(config.logger or {}).values()])
