"""Compiles kernels on all cores before they are needed: a whole network's take minutes on one.

Triton keeps what it has compiled on disk, where the process finds it that launches the kernel.
"""

import logging
import os
import time
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.models.mobilenet_v1.kernels.fused import depthwise, norm, pointwise, stem

log = logging.getLogger(__name__)
MODULES = depthwise, norm, pointwise, stem
SLOW = 0.2  # seconds: a kernel that takes longer was not found on disk
FEW = 8  # kernels that one process compiles faster than others start
MOST = 16  # processes: each holds some hundred MiB of the GPU while it compiles


class Launch(NamedTuple):
    """What Triton compiles a kernel for."""

    module: str
    kernel: str
    arguments: tuple[torch.dtype | float, ...]
    constants: tuple[tuple[str, Hashable], ...]


@contextmanager
def noted() -> Iterator[set[Launch]]:
    """Meanwhile no kernel of this model runs; what would have run is noted, and outputs hold just anything."""
    found = set[Launch]()

    def note(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        plain = tuple(sort(argument) for argument in arguments)
        found.add(Launch(kernel.fn.__module__, kernel.fn.__name__, plain, tuple(sorted(constants.items()))))

    before = [module.launch for module in MODULES]
    try:
        for module in MODULES:
            vars(module).update(launch=note)
        yield found
    finally:
        for module, launch in zip(MODULES, before, strict=True):
            vars(module).update(launch=launch)


def sort(argument: Tensor | float) -> torch.dtype | float:
    """All that Triton asks of an argument: of an integer whether it is 1 or a multiple of 16."""
    if isinstance(argument, Tensor):
        return argument.dtype
    return argument if isinstance(argument, float) or argument == 1 else 16 if argument % 16 == 0 else 2


def compile_all(launches: Iterable[Launch]) -> None:
    """Returns when all are compiled; those that take longest come first.

    Other processes start only where a kernel was not on disk, and for one rank of a machine: the others find there what
    these have compiled.
    """
    waiting = sorted(launches, key=lambda launch: (launch.kernel != "backward", str(launch)))
    alone = os.environ.get("LOCAL_RANK", "0") != "0"
    while waiting:
        begin = time.perf_counter()
        compiled(waiting.pop(0))
        if not alone and len(waiting) > FEW and time.perf_counter() - begin > SLOW:
            break
    if waiting:
        workers = min(MOST, max(1, (os.cpu_count() or 2) - 1))
        log.info("compiling %d kernels in %d processes", len(waiting), workers)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compiled, waiting))


def compiled(launch: Launch) -> None:
    kernel = getattr(import_module(launch.module), launch.kernel)
    kernel.warmup(*launch.arguments, grid=(1,), **dict(launch.constants))
