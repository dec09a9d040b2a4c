"""A function without inputs in one CUDA graph: what inference needs."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class Graphed(Generic[T]):
    """Calls `function`, from the first call on as a captured graph where `graph` says so.

    The function must read nothing that changes but its own modules' parameters and the default generator; what it
    returns is overwritten by the next call. It runs `warmup` times before the capture (compilation, autotuning).
    """

    def __init__(self, function: Callable[[], T], graph: bool, warmup: int = 3) -> None:
        self.function, self.warmup = function, warmup
        self.graph = torch.cuda.CUDAGraph() if graph else None
        self.result: T | None = None

    def __call__(self) -> T:
        if self.graph is None:
            return self.function()
        if self.result is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(self.warmup):
                    self.function()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=stream):
                self.result = self.function()
        self.graph.replay()
        return self.result
