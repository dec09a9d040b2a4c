"""Calls that are written differently for Hydra 1.3 with OmegaConf 2.3, and for Hydra 1.4 with OmegaConf 2.4."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

IS_OLD = hydra.__version__.startswith("1.3.")
BASE: dict[str, Any] = {"version_base": "1.3"} if IS_OLD else {}  # for hydra.main and initialize_config_dir

# Hydra 1.4 asks for a list of the classes that a config may name. A command may name any class, so there is none here:
# without it Hydra refuses those of its list of dangerous functions, as 1.3 does.
UNLISTED = ("hydra.utils.instantiate() resolved _target_", "Hydra configured Python logging without")


def ignore_unlisted() -> None:
    """Ignores Hydra 1.4's warnings of classes that are in no list."""
    for message in UNLISTED:
        warnings.filterwarnings("ignore", message=r"\s*" + re.escape(message), category=UserWarning)


def register_resolver(name: str, resolver: Callable[..., Any]) -> None:
    """Registers what `${name:...}` calls, in the place of an earlier one."""
    register: Any = OmegaConf.register_new_resolver if IS_OLD else OmegaConf.register_resolver
    register(name, resolver, replace=True)


def store_config(**config: Any) -> None:
    """Makes a config known to Hydra, in the place of an earlier one of that name."""
    replace: Any = {} if IS_OLD else {"replace": True}
    ConfigStore.instance().store(**config, **replace)
