"""Lightning and torch without what a start has no use for, which takes more than half of it.

Lightning cannot be imported without torchmetrics, which imports the packages of OPTIONAL wherever they are installed,
for metrics that nobody here uses; nor without torch's compiler, which src/system/compiler_later.py leaves out.
"""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from src.system import compiler_later

PLAIN = "REPRISE_PLAIN_START"  # set in the environment: every import as it is
TRIED = {"torch": ("2.11.", "2.13."), "torchmetrics": ("1.9.",), "lightning-utilities": ("0.15.",)}
OPTIONAL = ("scipy", "transformers", "matplotlib", "torchvision")


def install() -> None:
    """Shortens the imports that follow, unless PLAIN is set or a package has another version than TRIED."""
    if not os.environ.get(PLAIN) and all(version(name).startswith(tried) for name, tried in TRIED.items()):
        sys.meta_path.insert(0, LeanImport())


@contextmanager
def loading() -> Iterator[None]:
    """Imports that never are garbage: looking for it among them, then and ever after, takes a fifth of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LeanImport(MetaPathFinder):
    """Has torchmetrics imported as if the packages of OPTIONAL were not installed, and the compiler when needed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(compiler_later.NAME):
            return compiler_later.find_spec(fullname, path)
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torchmetrics" else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = LeanLoader(spec.loader.name, spec.loader.path)
        return spec


class LeanLoader(SourceFileLoader):
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
