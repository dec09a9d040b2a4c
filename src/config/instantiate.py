"""From config to objects: Hydra's `instantiate` with errors for the person at the keyboard."""

from collections.abc import Mapping
from typing import Any

from hydra import utils
from hydra.errors import InstantiationException
from omegaconf import OmegaConf


def instantiate(section: Mapping[str, Any] | None, key: str, **options: Any) -> Any:
    """Returns what Hydra instantiates of a section of plain values; its objects get plain values too.

    Args:
        key: of the section, for messages.
        options: arguments in the place of the section's, or beside them.

    Raises what the constructor raised.
    """
    config = OmegaConf.create()
    OmegaConf.update(config, key, section, merge=False)
    try:
        return utils.instantiate(OmegaConf.select(config, key), _convert_="object", **options)
    except InstantiationException as wrapped:
        raise wrapped.__cause__ or wrapped from None
