"""Shape hints are checked while tests run: every module of `src` is imported with beartype's checks."""

import os
import sys
from importlib.util import find_spec

# The tests' tensors are small: several threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The GPU machine may lack beartype, and torch.compile cannot look through the checks: `-m gpu` goes without them.
if find_spec("beartype") and "gpu" not in sys.argv:
    from jaxtyping import install_import_hook

    install_import_hook("src", "shapes.check")
