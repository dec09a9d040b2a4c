"""Lightning and torch without what a start has no use for, which takes more than half of it.

Lightning cannot be imported without torchmetrics, which imports the packages of OPTIONAL wherever they are installed,
for metrics that nobody here uses; nor without torch's compiler, which src/system/compiler_later.py leaves out.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import PackageNotFoundError
from types import ModuleType

from src.system import compiler_later

OPTIONAL = ("scipy", "transformers", "matplotlib", "torchvision")


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

    version = imports.__dict__["_version"]

    def version_of_others(name: str) -> str:
        if name in names:
            raise PackageNotFoundError(name)
        return version(name)

    imports.__dict__["_version"] = version_of_others
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type] # None: not to be found
    try:
        yield
    finally:
        imports.__dict__["_version"] = version
        for name in names:
            del sys.modules[name]
