"""Functions of batches without a GPU: they run as they are. What graphs do is in tests/gpu."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from src.gpu import cuda_graphs
from src.gpu.cuda_graphs import Graphed, fill


class Ragged(NamedTuple):
    values: Tensor
    count: int


def test_without_a_graph_every_call_is_the_functions_own() -> None:
    seen: list[Any] = []

    def function(batch: Ragged) -> Tensor:
        seen.append(batch)
        return batch.values.sum() * batch.count

    run = Graphed(function, graph=False)
    batches = [Ragged(torch.ones(size), size) for size in (2, 3, 2, 5, 2)]
    assert [int(run(batch)) for batch in batches] == [4, 9, 4, 25, 4]
    assert all(one is other for one, other in zip(seen, batches, strict=True))
    assert not run.captures


def test_warming_up_calls_once_where_there_is_no_graph() -> None:
    calls: list[int] = []
    run = Graphed(lambda: calls.append(1), graph=False)
    run.warm_up()
    assert calls == [1]
    run()
    assert calls == [1, 1]


def test_large_and_small_tensors_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "LARGE", 100)
    sources = [torch.arange(size, dtype=dtype) for size in (2, 50, 3) for dtype in (torch.int64, torch.uint8)]
    sources += [torch.arange(120.0).view(10, 12).T, torch.arange(6.0).view(2, 3).T]
    targets = [torch.zeros_like(source) for source in sources]
    fill(targets, sources)
    assert all(map(torch.equal, targets, sources))
    fill([], [])
