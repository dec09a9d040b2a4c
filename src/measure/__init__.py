"""Clocks, rates, statistics and rooflines, and meters of any training loop; Lightning in `lightning.py` alone.

docs/reference/metrics.md defines the figures.
"""

from importlib import import_module
from typing import Any

PUBLIC = {"training": "loop", "Meter": "loop", "Work": "loop", "LightningMeter": "lightning"}  # without torch till used


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC])
