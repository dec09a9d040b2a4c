"""Shape hints are checked while tests run: every module of `src` is imported with beartype's checks."""

import os
from importlib.util import find_spec

# The tests' tensors are small: several threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if find_spec("beartype"):  # the GPU machine may lack it; the hints are then not checked there
    from jaxtyping import install_import_hook

    install_import_hook("src", "shapes.check")
