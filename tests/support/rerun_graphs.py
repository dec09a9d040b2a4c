"""Graphs on a CPU for tests: a replay runs what was recorded again and writes its results to the same memory."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from src.gpu import training_graphs, triton_helpers

T = TypeVar("T")


class Rerun:
    def __init__(self, body: Callable[[], object], first: object) -> None:
        self.body, self.first = body, first

    def replay(self) -> None:
        with torch.enable_grad():
            again = self.body()
        for old, new in zip(self.first, again, strict=True):  # type: ignore[call-overload]
            if isinstance(old, Tensor):
                old.data.copy_(new)


def record(body: Callable[[], T], graphs: training_graphs.TrainingGraphs) -> tuple[Rerun, T]:
    """Returns the body as a graph, and what it returns.

    A capture runs nothing: what the body returns has no numbers yet, and the memory of gradients has those of before.
    """
    memory = [(flat, flat.clone()) for memory in graphs.memories.values() for flat in memory.flat.values()]
    value = body()
    for flat, before in memory:
        flat.copy_(before)
    for tensor in value:  # type: ignore[attr-defined]
        if isinstance(tensor, Tensor):
            tensor.data.fill_(float("nan"))  # `data`: autograd need not know
    return Rerun(body, value), value


@pytest.fixture
def rerun_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets modules on a CPU have graphs, and Triton's interpreter run kernels."""
    monkeypatch.setattr(training_graphs, "devices", {"cuda", "cpu"})
    monkeypatch.setattr(training_graphs, "record", record)
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    triton_helpers.note.cache_clear()
