"""CPU seconds of a whole tiny run, with the start-up of src/patches.py, and with plain imports.

python -m benchmarks.start_up [rounds]
"""

import os
import resource
import subprocess
import sys
import tempfile

RUN = """
import sys
from contextlib import nullcontext
from pathlib import Path
from src import patches
from src.system.loading import loading
kind = sys.argv[1]
if kind == "patched":
    patches.install()
elif kind == "torch._dynamo at once":
    patches.install(patches.HYDRA, patches.TORCHMETRICS)
with nullcontext() if kind == "plain" else loading():
    from src.run import train
from tests.support.tiny_mobilenet import tiny_mobilenet
train(tiny_mobilenet(Path(sys.argv[2]), "fit.max_steps=2"))
"""
KINDS = ("patched", "torch._dynamo at once", "torchmetrics as it is", "plain")


def cpu_seconds(kind: str) -> float:
    """Returns user and system time of one run in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-c", RUN, kind, folder], env=environment, stdout=subprocess.DEVNULL, check=True
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    """Prints each kind's times, measured in turn, and their least."""
    measured = [[cpu_seconds(kind) for kind in KINDS] for _ in range(rounds)]
    for kind, times in zip(KINDS, zip(*measured, strict=True), strict=True):
        print(f"{kind:24} {' '.join(f'{seconds:5.2f}' for seconds in times)}   least {min(times):.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
