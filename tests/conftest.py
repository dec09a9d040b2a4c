"""Shape hints are checked while tests run: every module of `src` is imported with beartype's checks."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

import pytest

from tests.support import patched_start  # noqa: F401

# The tests' tensors are small: several threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton's interpreter runs the fused kernels on the CPU. Only so before Triton is first imported, as Lightning does.
# The workers of `-n`, whose arguments do not say what is tested, inherit it.
os.environ.setdefault("TRITON_INTERPRET", "0" if "gpu" in sys.argv else "1")


class Unchecked(MetaPathFinder):
    """Finds the modules of kernels: Triton reads a function's source, and would read the check's instead."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname.endswith("_triton") else None


# The GPU machine may lack beartype, and torch.compile cannot look through the checks: `-m gpu` goes without them.
if find_spec("beartype") and os.environ["TRITON_INTERPRET"] == "1":
    from jaxtyping import install_import_hook

    import tests.support.shapes  # noqa: F401

    install_import_hook("src", "tests.support.shapes.check")
    sys.meta_path.insert(0, Unchecked())

from tests.support.refusing import command, refused  # noqa: E402, F401 # fixtures; they import `src`, so only now


@pytest.fixture(autouse=True)
def highest_precision() -> None:
    """Runs of other tests set the precision of products for the whole process."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_float32_matmul_precision("highest")
