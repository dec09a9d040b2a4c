"""From config to objects: Hydra's `instantiate` with errors for the person at the keyboard."""

from dataclasses import dataclass
from typing import Any

from hydra import utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig


def instantiate(config: Any, **options: Any) -> Any:
    """Returns what Hydra instantiates. Raises what the constructor raised."""
    try:
        return utils.instantiate(config, **options)
    except InstantiationException as wrapped:
        raise wrapped.__cause__ or wrapped from None


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

    Raises UserError where task and datamodule do not belong together.
    """
    datamodule, task = instantiate(config.datamodule), instantiate(config.model.task)
    task.check_datamodule(datamodule)
    execution = instantiate(config.execution, _convert_="object")
    callbacks = instantiate(config.callbacks or {}, _convert_="object")
    return Parts(datamodule, task, execution, [*callbacks.values()], [*instantiate(config.logger or {}).values()])
