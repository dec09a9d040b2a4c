"""`torch._dynamo`, the front end of torch's compiler, loaded when something is asked of it that it alone knows.

To import it takes as long as to import torch. Lightning cannot be imported without it, nor can torch's optimisers make
a step: to ask whether a module is compiled, and to say that a function is not to be. Where nothing is compiled that
can be answered without it. Any other attribute and any submodule loads it, in its place.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

NAME = "torch._dynamo"


def find_spec(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Returns the compiler in its later form, or a submodule of it, once the compiler is loaded."""
    if fullname.startswith(f"{NAME}.") and isinstance(package := sys.modules.get(NAME), Later):
        package.load()
        if fullname in sys.modules:  # the package imported it
            return Loaded.spec_of(sys.modules[fullname])
    spec = PathFinder.find_spec(fullname, path) if fullname == NAME else None
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = LaterLoader(spec.loader.name, spec.loader.path)
    return spec


class LaterLoader(SourceFileLoader):
    """Gives the module what can be answered without the compiler."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = Later
        module.__dict__.update(
            OptimizedModule=OptimizedModule, disable=disable, graph_break=graph_break, trace_rules=TraceRules()
        )


class Later(ModuleType):
    """The compiler before it is loaded."""

    lock, is_loading = threading.RLock(), False

    def __getattr__(self, name: str) -> Any:
        self.load()
        return ModuleType.__getattribute__(self, name)

    def load(self) -> None:
        """Makes this the compiler itself."""
        with self.lock:
            if type(self) is Later and not Later.is_loading:
                assert self.__spec__ is not None and isinstance(self.__spec__.loader, LaterLoader)
                Later.is_loading = True
                try:
                    SourceFileLoader.exec_module(self.__spec__.loader, self)
                    self.__class__ = ModuleType  # type: ignore[assignment]
                    while waiting:
                        waiting.pop()()
                finally:
                    Later.is_loading = False


class Loaded(Loader):
    """Answers with a module as it is."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    @staticmethod
    def spec_of(module: ModuleType) -> ModuleSpec:
        """Returns the module has it too for so long: a module that is there already is imported by its own."""
        spec = vars(module)["__spec__"] = ModuleSpec(module.__name__, Loaded(module))
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self.spec


def loaded() -> Any:
    """Returns the compiler; None where nothing has been asked of it."""
    module = sys.modules.get(NAME)
    return None if isinstance(module, Later) else module


def load() -> Any:
    """Returns the compiler."""
    if isinstance(module := sys.modules[NAME], Later):
        module.load()
    return module


class Compiled(type):
    def __instancecheck__(cls, instance: object) -> bool:
        compiler = loaded()
        return compiler is not None and isinstance(instance, compiler.OptimizedModule)


class OptimizedModule(metaclass=Compiled):
    """For `isinstance`: what `torch.compile` makes of a module."""


class TraceRules:
    """For torch, which clears them before a group of ranks begins."""

    def clear_lru_cache(self) -> None:
        if (compiler := loaded()) is not None:
            compiler.trace_rules.clear_lru_cache()

    def __getattr__(self, name: str) -> Any:
        return getattr(load().trace_rules, name)


def graph_break(msg: str = "") -> None:
    """Does nothing, as torch's own does outside of compilation."""


waiting: list[Callable[[], None]] = []  # what is to be done once the compiler is loaded


def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """Returns the function marked as not to be compiled: torch's `disable` once there is a compiler."""
    if fn is None:
        return lambda function: disable(function, recursive, **options)
    if loaded() is not None or not isinstance(fn, FunctionType):
        return load().disable(fn, recursive, **options)
    now = fn

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return now(*args, **kwargs)

    def settle() -> None:
        nonlocal now
        compiler = load()
        now = compiler.disable(fn, recursive, **options)
        compiler.decorators.skip(call)
        call.__dict__["_torchdynamo_disable_msg"] = options.get("reason")

    waiting.append(settle)
    return call
