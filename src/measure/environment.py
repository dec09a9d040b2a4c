"""Describes the machine, software and command of a run, without secrets."""

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from src.measure.sources import sources
from src.system.masking import masked_text
from src.system.read_ahead import ReadAhead

LIBRARIES = ("torch", "triton", "pytorch-lightning", "hydra-core", "omegaconf", "rdkit", "numpy", "transformers",
             "e3nn", "torchrec", "fbgemm-gpu", "dgl")  # fmt: skip


def environment(overrides: list[str]) -> dict[str, Any]:
    """Returns CPU, GPUs, driver, library versions, git state and command-line overrides as plain data."""
    return {
        "cpu": cpu_name(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "cpu_threads": torch.get_num_threads(),  # of one product: sums in more parts are rounded otherwise
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),  # passive where others used the cores when the run began
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "machine": machine_of_gpus(),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "libraries": {name: installed for name in LIBRARIES if (installed := library_version(name))},
        "git": sources(),
        "command": " ".join([Path(sys.argv[0]).name, *map(masked_text, sys.argv[1:])]),
        "overrides": [*map(masked_text, overrides)],
    }


def environment_ahead(overrides: list[str]) -> Callable[[], dict[str, Any]]:
    """Begins to describe them in a thread, beside the making of the network; returns what waits for the description.

    git, NVML and the files of the code take longer than Python. With REPRISE_PLAIN_START set, nothing begins before.
    """
    ahead = None if os.environ.get("REPRISE_PLAIN_START") else ReadAhead(lambda: environment(overrides))
    return lambda: (ahead and ahead.value()) or environment(overrides)


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver, None without one."""
    if not torch.cuda.is_available():
        return None
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def machine_of_gpus() -> str | None:
    """Returns a name of the machine by its GPUs, whether torch sees them or not; None without a GPU.

    Rows of one and of several GPUs compare where they have the same. A GPU that the user may not read is left out.
    """
    if not torch.cuda.is_available():
        return None
    import pynvml

    pynvml.nvmlInit()
    names = list[str]()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            names.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))))
    return sha256(" ".join(sorted(names)).encode()).hexdigest()[:8]


def library_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
