"""From config to objects: Hydra's `instantiate` with errors for the person at the keyboard."""

from importlib import import_module
from typing import Any

from hydra import utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from src.errors import UserError


def check_complete(config: DictConfig) -> None:
    """Raises UserError naming the first key that has no value yet."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise UserError(f"{missing[0]} has no value; give it as {missing[0]}=VALUE")


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
    """What `instantiate` makes. Raises what the constructor raised; UserError for a key that it does not know."""
    try:
        return utils.instantiate(config, **options)
    except InstantiationException as wrapped:
        cause = wrapped.__cause__ or wrapped
        _, unknown, key = str(cause).partition("got an unexpected keyword argument ")
        if isinstance(cause, TypeError) and unknown:
            where = str(wrapped).rpartition("full_key: ")[2]
            raise UserError(f"{where} has no key {key}; see `--cfg job` for every key there is") from cause
        raise cause from None
