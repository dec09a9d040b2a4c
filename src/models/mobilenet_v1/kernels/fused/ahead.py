"""Compiles kernels on all cores before they are needed: a whole network's take minutes on one.

Triton keeps what it has compiled on disk, where the process finds it that launches the kernel.
"""

import os
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from src.models.mobilenet_v1.kernels.fused import depthwise, norm, pointwise, stem

MODULES = depthwise, norm, pointwise, stem


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
    """Returns when all are compiled; those that take longest come first."""
    workers = max(1, (os.cpu_count() or 2) - 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compiled, sorted(launches, key=lambda launch: (launch.kernel != "backward", str(launch)))))


def compiled(launch: Launch) -> None:
    kernel = getattr(import_module(launch.module), launch.kernel)
    kernel.warmup(*launch.arguments, grid=(1,), **dict(launch.constants))
