"""Queues are renewed where a driver is, and never in the way where none is."""

import threading

import pytest
import torch

from src.gpu import graph_gaps
from src.gpu.graph_gaps import GIB, queues_renewed, renew_queues


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_graph_gaps_gpu.py is for GPUs")
def test_without_a_driver_nothing_happens() -> None:
    assert renew_queues(0) is False


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("free", "is_beside"), [(12 * GIB, True), (10 * GIB, False)])
def test_a_second_context_is_made_beside_a_capture_if_there_is_memory_for_both(
    free: int, is_beside: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, begun = list[str](), threading.Event()

    def renew(device: int) -> None:
        order.append(f"renewed {device}")
        begun.set()

    monkeypatch.setattr(graph_gaps, "renew_queues", renew)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2 * free))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10 * GIB)
    with pytest.raises(RuntimeError) if fails else queues_renewed():
        if fails:
            with queues_renewed():
                raise RuntimeError
        assert begun.wait(60 if is_beside else 0.1) == is_beside
        order.append("captured")
    expected = ["renewed 1"] if fails else ["renewed 1", "captured"] if is_beside else ["captured", "renewed 1"]
    assert order == expected
