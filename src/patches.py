"""Patches of other packages: what each changes, the versions that it was tried with, and its switch.

With its switch set in the environment, or another version of a package, the package is left as it is: numbers of the
command line lose how they were written, and all is imported that torchmetrics and Lightning may need.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from src.system import later_dynamo

SOURCES, LIBRARY = "torch._library.utils", "torch.library"
LEGENDRE = "e3nn.o3._angular_spherical_harmonics"
OPTIONAL = ("scipy", "transformers", "matplotlib", "torchvision")


def keep_written_numbers() -> None:
    """Has Hydra keep numbers as they were written, and set them as texts where a key's type is one."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_visitor import HydraOverrideVisitor
    from hydra.core.override_parser.types import Transformer

    from src.config.written import has_numbers, plain, value_for, with_text

    parse, apply = HydraOverrideVisitor._createPrimitive, ConfigLoaderImpl._apply_overrides_to_config
    encode = Transformer.encode

    @wraps(parse)
    def parse_with_text(self: Any, ctx: Any) -> Any:
        return with_text(parse(self, ctx), ctx.getText().strip())

    @wraps(apply)
    def apply_by_type(overrides: list[Any], cfg: Any) -> None:
        for override in overrides:
            if not override.is_delete() and has_numbers(override.value()):
                override._value = value_for(cfg, override)
            apply([override], cfg)

    Transformer.encode = staticmethod(lambda x: plain(encode(x)))  # sweepers of others store these values
    HydraOverrideVisitor._createPrimitive = parse_with_text  # type: ignore[method-assign]
    ConfigLoaderImpl._apply_overrides_to_config = staticmethod(apply_by_type)  # type: ignore[method-assign]


def compose_once() -> None:
    """Has Hydra run the config from which it learns whether to run or to sweep, instead of composing it again."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode

    load, get_mode = ConfigLoaderImpl.load_configuration, Hydra.get_mode

    @wraps(get_mode)
    def get_mode_of_run(self: Any, config_name: str | None, overrides: list[str]) -> Any:
        try:
            config = load(self.config_loader, config_name, overrides, RunMode.RUN)
        except Exception:  # a sweep, or a mistake: both are told by how Hydra composes it
            return get_mode(self, config_name, overrides)
        mode = config.hydra.mode
        if mode is None:  # as Hydra does if nothing else is asked for
            config.hydra.mode = RunMode.RUN
            config.hydra.overrides.hydra.append("hydra.mode=RUN")
        composed = {
            "config_name": config_name,
            "overrides": [*overrides, *(["hydra.mode=RUN"] if mode is None else [])],
            "run_mode": RunMode.RUN,
        }

        def load_once(**asked: Any) -> Any:
            del self.config_loader.load_configuration
            if composed.items() <= asked.items():
                return config
            return self.config_loader.load_configuration(**asked)

        self.config_loader.load_configuration = load_once
        return mode

    Hydra.get_mode = get_mode_of_run  # type: ignore[method-assign]


def import_torchmetrics_alone() -> None:
    """Has torchmetrics, which Lightning imports, not import the packages of OPTIONAL for metrics that are not used."""
    sys.meta_path.insert(0, TorchmetricsAlone())


def import_dynamo_later() -> None:
    """Has torch._dynamo, which Lightning and optimisers import, be imported where something is compiled."""
    later_dynamo.install()


def import_sympy_later() -> None:
    """Has e3nn import sympy for its Legendre polynomials alone, which are not used here."""
    sys.meta_path.insert(0, SympyLater())


def tell_sources_by_frame() -> None:
    """Has torch tell where a custom operator is defined by its frame, without going through all modules.

    torch registers 115 operators while it is imported.
    """
    sys.meta_path.insert(0, SourcesByFrame())


class Patch(NamedTuple):
    """A patch, the environment variable that switches it off, and the first figures of the tried versions."""

    apply: Callable[[], None]
    switch: str
    tried: Mapping[str, tuple[str, ...]]

    @property
    def is_wanted(self) -> bool:
        """Whether it is not switched off, and the packages have versions that it was tried with."""
        versions_fit = all(version(name).startswith(tried) for name, tried in self.tried.items())
        return not os.environ.get(self.switch) and versions_fit


HYDRA = Patch(
    keep_written_numbers, "REPRISE_PLAIN_OVERRIDES", {"hydra-core": ("1.3.", "1.4."), "omegaconf": ("2.3.", "2.4.")}
)
COMPOSED = Patch(compose_once, "REPRISE_PLAIN_START", {"hydra-core": ("1.3.",)})
TORCHMETRICS = Patch(
    import_torchmetrics_alone, "REPRISE_PLAIN_START", {"torchmetrics": ("1.9.",), "lightning-utilities": ("0.15.",)}
)
DYNAMO = Patch(
    import_dynamo_later, "REPRISE_PLAIN_START", {"torch": ("2.11.", "2.13."), "pytorch-lightning": ("2.6.",)}
)
E3NN = Patch(import_sympy_later, "REPRISE_PLAIN_START", {"e3nn": ("0.6.",)})
OPERATORS = Patch(tell_sources_by_frame, "REPRISE_PLAIN_START", {"torch": ("2.11.", "2.13.")})
installed: list[Patch] = []


def install(*patches: Patch) -> None:
    """Applies patches, all if none is given, where they are wanted, each once."""
    for patch in patches or (HYDRA, COMPOSED, TORCHMETRICS, DYNAMO, E3NN, OPERATORS):
        if patch not in installed and patch.is_wanted:
            installed.append(patch)
            patch.apply()


class TorchmetricsAlone(MetaPathFinder):
    """Finds torchmetrics with a loader that hides the packages of OPTIONAL from it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchmetrics" else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = AloneLoader(spec.loader.name, spec.loader.path)
        return spec


class AloneLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with hidden([name for name in OPTIONAL if name not in sys.modules]):
            super().exec_module(module)


@contextmanager
def hidden(names: Sequence[str]) -> Iterator[None]:
    """Packages that are not there for whoever asks in the two ways that torchmetrics does."""
    from lightning_utilities.core import imports

    original = imports.__dict__["_version"]

    def version_of_others(name: str) -> str:
        if name in names:
            raise PackageNotFoundError(name)
        return original(name)

    imports.__dict__["_version"] = version_of_others
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type] # None: not to be found
    try:
        yield
    finally:
        imports.__dict__["_version"] = original
        for name in names:
            del sys.modules[name]


class SympyLater(MetaPathFinder):
    """Finds e3nn's module of Legendre polynomials with a loader that has it import sympy later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_meant = fullname == LEGENDRE and "sympy" not in sys.modules
        spec = PathFinder.find_spec(fullname, path, target) if is_meant else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = SympyLaterLoader(spec.loader.name, spec.loader.path)
        return spec


class SympyLaterLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        stand_in = sys.modules["sympy"] = NamesOfSympy("sympy")
        try:
            super().exec_module(module)
        finally:
            del sys.modules["sympy"]
        parts = vars(module)
        polynomial = parts["_poly_legendre"]  # the one function that uses sympy, by another

        @wraps(polynomial)
        def polynomial_with_sympy(*arguments: Any) -> Any:
            sympy = import_module("sympy")
            parts.update({name: getattr(sympy, name) for name in stand_in.names}, _poly_legendre=polynomial)
            return polynomial(*arguments)

        parts["_poly_legendre"] = polynomial_with_sympy


class NamesOfSympy(ModuleType):
    """Notes the names that a module takes from sympy."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.names: list[str] = []

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        self.names.append(name)


class SourcesByFrame(MetaPathFinder):
    """Finds torch's modules that tell where operators are defined with a loader that replaces the functions for it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in (SOURCES, LIBRARY) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = SourcesLoader(spec.loader.name, spec.loader.path)
        return spec


class SourcesLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if module.__name__ == SOURCES:
            vars(module)["get_source"] = source_of_frame
        else:
            vars(module)["inspect"] = SimpleNamespace(**vars(inspect) | {"getmodule": module_of_frame})


def source_of_frame(stacklevel: int) -> str:
    """Returns `file:line` of a caller, 1 for this function's: torch's own reads the lines of the file too."""
    frame = sys._getframe(stacklevel)
    return f"{inspect.getsourcefile(frame) or inspect.getfile(frame)}:{frame.f_lineno}"


def module_of_frame(frame: FrameType) -> ModuleType | None:
    """Returns the module whose code a frame runs: `inspect.getmodule` takes the real paths of all modules for it."""
    return sys.modules.get(frame.f_globals.get("__name__", ""))
