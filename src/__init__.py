"""Reprise as a library: `load`, `from_pretrained`, `measure`, `accelerate`, and the models; docs/guides/library.md.

Importing it loads nothing else: neither torch, nor Hydra, nor Lightning.
"""

from importlib import import_module
from typing import Any

from src.system.home import VERSION

__version__ = VERSION
PUBLIC = {  # the module of each
    "load": "trained",
    "from_pretrained": "trained",
    "accelerate": "acceleration",
    "UserError": "errors",
}
MODULES = ("measure", "models")


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"{__name__}.{name}")
    if name in PUBLIC:
        value = getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *PUBLIC, *MODULES])
