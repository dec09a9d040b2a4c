"""A side's end of the connection to the process that gives it its turns."""

import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch

from src.measure.memory import peak_memory
from src.training.prediction import synchronize

HANDLE = "BESIDE_HANDLE"  # of the connection, in the environment of a side


class Link:
    """Takes turns: a turn is a number of steps that are timed together.

    The device is idle when a turn begins and when it ends. `step_s` is the median of the single steps: of CUDA events
    on the current stream, of the host's clock on a CPU.

    Args:
        handle: of the connection; the one in the environment if not given.
    """

    def __init__(self, handle: int | None = None) -> None:
        self.connection = Connection(int(os.environ[HANDLE]) if handle is None else handle)
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.last_words: Callable[[], dict[str, Any]] = dict  # more for the record, asked after the last turn
        self._left = 0

    def say_ready(self, **about: Any) -> None:
        """Tells the parent that steps can begin; `about` goes into the side's record."""
        uuid = None
        if self.device.type == "cuda":
            uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
        self.connection.send({"ready": about | {"gpu_uuid": uuid}})

    def say_failed(self, error: BaseException) -> None:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        self.connection.send({"error": words[:500]})

    def begin(self, samples: int) -> bool:
        """Waits for the next turn and begins it; False if there is none. `samples`: done so far, of any origin."""
        synchronize(self.device)
        try:
            steps = self.connection.recv().get("steps")
        except EOFError:
            return False
        if steps is None:
            self.connection.send({"ended": {"mem": peak_memory(self.device), **self.last_words()}})
            return False
        self._left, self._first, self._marks = steps, samples, list[Any]()
        synchronize(self.device)
        self._begin_s = time.perf_counter()
        self._mark()
        return True

    def step(self, samples: int) -> bool:
        """Ends a step; `samples` have been done so far. Returns True at the end of the turn, which is then answered."""
        self._left -= 1
        self._mark()
        if self._left:
            return False
        synchronize(self.device)
        seconds = time.perf_counter() - self._begin_s
        on_gpu = self.device.type == "cuda"
        steps = [a.elapsed_time(b) / 1e3 if on_gpu else b - a for a, b in pairwise(self._marks)]
        answer = {"steps": len(steps), "samples": samples - self._first, "seconds": seconds}
        self.connection.send(answer | {"step_s": statistics.median(steps)})
        return True

    def _mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())
