"""Compiles kernels on all cores before they are needed: those of a whole network take minutes on one core.

Triton caches compiled kernels on disk, where the launching process finds them.
"""

import logging
import os
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.gpu import partial_sums
from src.models.mobilenet_v1.fast import depthwise, norm, pointwise, stem
from src.system.workers import WorkerPool, cpu_count

log = logging.getLogger(__name__)
MODULES = depthwise, norm, partial_sums, pointwise, stem
CACHED_S = 0.2  # a kernel that takes longer was not in the cache on disk
FEW = 8  # kernels that one process compiles before others have started
MAX_PROCESSES = 16  # each holds some hundred MiB of GPU memory while it compiles


class Launch(NamedTuple):
    """A kernel and the argument types and constants that Triton compiles it for."""

    module: str
    kernel: str
    arguments: tuple[torch.dtype | float, ...]
    constants: tuple[tuple[str, Hashable], ...]


@contextmanager
def record_launches() -> Iterator[set[Launch]]:
    """Records kernel launches of this model instead of running them; outputs are uninitialised."""
    launches = set[Launch]()

    def record(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        plain = tuple(specialisation(argument) for argument in arguments)
        launches.add(Launch(kernel.fn.__module__, kernel.fn.__name__, plain, tuple(sorted(constants.items()))))

    before = [module.launch for module in MODULES]
    try:
        for module in MODULES:
            vars(module).update(launch=record)
        yield launches
    finally:
        for module, launch in zip(MODULES, before, strict=True):
            vars(module).update(launch=launch)


def specialisation(argument: Tensor | float) -> torch.dtype | float:
    """Returns what Triton specialises on: a tensor's dtype; whether an integer is 1 or a multiple of 16."""
    if isinstance(argument, Tensor):
        return argument.dtype
    return argument if isinstance(argument, float) or argument == 1 else 16 if argument % 16 == 0 else 2


def compile_all(launches: Iterable[Launch]) -> None:
    """Compiles all kernels, those that take longest first.

    It starts other processes only if a kernel was not in the cache on disk, and only on one rank of a machine; the
    other ranks then find the kernels there.
    """
    waiting = sorted(launches, key=lambda launch: (launch.kernel != "backward", str(launch)))
    if waiting:
        compile_one(waiting.pop())  # a short one: the first has Triton and the device begin, which takes longer too
    is_other_rank = os.environ.get("LOCAL_RANK", "0") != "0"
    while waiting:
        begin = time.perf_counter()
        compile_one(waiting.pop(0))
        if not is_other_rank and len(waiting) > FEW and time.perf_counter() - begin > CACHED_S:
            break
    if waiting:
        workers = min(MAX_PROCESSES, max(1, cpu_count() - 1))
        log.info("compiling %d kernels in %d processes", len(waiting), workers)
        with WorkerPool(workers) as pool:
            for compiled in [pool.submit(compile_one, launch) for launch in waiting]:
                compiled.result()


def compile_one(launch: Launch) -> None:
    """Compiles a kernel without launching it."""
    kernel = getattr(import_module(launch.module), launch.kernel)
    kernel.warmup(*launch.arguments, grid=(1,), **dict(launch.constants))
