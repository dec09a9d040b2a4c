"""Composes configs as the entry points do, each choice of groups once in a process: Hydra takes 0.3 s."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src import patches
from src.config import schema, written
from src.config.settings import CONF
from src.config.versions import BASE

if TYPE_CHECKING:
    from src.report.record import Record


def composed(entry: str, *overrides: str) -> DictConfig:
    """Returns the config of `entry` with these overrides, for the caller alone.

    Values are set as Hydra sets them, after what the groups give and in order; where one cannot be, Hydra says why.
    """
    patches.install(patches.HYDRA)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    values = [override for override in parsed if _is_value(override)]
    config = deepcopy(
        _composed(entry, tuple(str(override.input_line) for override in parsed if override not in values))
    )
    try:
        for override in values:
            if override.is_add() and OmegaConf.select(config, override.key_or_group) is not None:
                return deepcopy(_composed(entry, overrides))
            OmegaConf.update(
                config, override.key_or_group, written.value_for(config, override), force_add=override.is_add()
            )
    except OmegaConfBaseException:
        return deepcopy(_composed(entry, overrides))
    return config


def prediction_of(overrides: Sequence[str]) -> "Record":
    """Returns the record of predict.py with these overrides."""
    from src.predict import predict  # other tests need not wait for it

    return predict(composed("predict", *overrides), overrides)


def _is_value(override: Override) -> bool:
    key = override.key_or_group
    return not (override.is_delete() or key.startswith("hydra.") or (CONF / key).is_dir())


@cache
def _composed(entry: str, overrides: tuple[str, ...]) -> DictConfig:
    schema.register()
    with initialize_config_dir(str(CONF), **BASE):
        return compose(entry, list(overrides))
