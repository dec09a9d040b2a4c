"""torch._dynamo, imported at its first real use: Lightning and torch's optimisers import it in every run.

It takes a fifth of a start, with sympy and most of torch.distributed, for a class that Lightning compares with and
functions that do nothing outside of `torch.compile`. These have stand-ins here; anything else imports the package.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
# They take a class by `from torch._dynamo import`, for which Python looks whether that is a package.
TAKES_CLASS = ("lightning_fabric.wrappers", "pytorch_lightning.utilities.compile")
_lock = RLock()
_is_eager = ContextVar("is_eager", default=False)


def install() -> None:
    """Puts the stand-in in the package's place, unless that was imported."""
    sys.modules.setdefault(NAME, LaterDynamo(NAME))


class OfImported(type):
    """Before the package is imported, no module was compiled."""

    def __instancecheck__(cls, instance: object) -> bool:
        return is_imported() and isinstance(instance, sys.modules[NAME].OptimizedModule)


class OptimizedModule(metaclass=OfImported):
    """Compares as the class of the package."""


class LaterDynamo(ModuleType):
    OptimizedModule = OptimizedModule

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """Does nothing, as the package's own does where nothing is compiled."""

    @staticmethod
    def disable(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Returns the function; once the package is imported, as its `disable` returns it."""
        disabled: list[Callable[..., Any]] = []

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not disabled and is_imported():
                disabled.append(sys.modules[NAME].disable(function, *arguments, **options))
            return (disabled[0] if disabled else function)(*args, **kwargs)

        vars(call)["_torchdynamo_disable"] = True  # a compiled function that calls it does not look into it
        return call

    @property
    def trace_rules(self) -> Any:
        return sys.modules[NAME].trace_rules if is_imported() else LaterTraceRules

    def __getattr__(self, name: str) -> Any:
        is_asked_by = sys._getframe(1).f_globals.get("__name__")
        if name.startswith("__") and not (name == "__path__" and is_asked_by not in TAKES_CLASS):
            raise AttributeError(name)  # who goes through all modules does not use them
        with _lock:
            if sys.modules.get(NAME) is self:
                del sys.modules[NAME]
                if (torch := sys.modules.get("torch")) is not None:
                    vars(torch).pop("_dynamo", None)
        return getattr(import_module(NAME), name)


class LaterTraceRules:
    @staticmethod
    def clear_lru_cache() -> None:
        """Does nothing: there is no such cache yet."""


def is_imported() -> bool:
    """Returns whether the package itself is in its place."""
    return not isinstance(sys.modules.get(NAME), LaterDynamo | None)


@contextmanager
def eagerly() -> Iterator[None]:
    """Runs compiled functions as they are, also those that are to be compiled at their first call (`is_eager`)."""
    outside = _is_eager.set(True)
    try:
        with sys.modules["torch"].compiler.set_stance("force_eager") if is_imported() else nullcontext():
            yield
    finally:
        _is_eager.reset(outside)


def is_eager() -> bool:
    """Returns whether this runs within `eagerly`."""
    return _is_eager.get()
