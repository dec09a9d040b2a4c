"""Queues are renewed where a driver is, and never in the way where none is."""

import pytest
import torch

from src.gpu.graph_gaps import renew_queues


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_graph_gaps_gpu.py is for GPUs")
def test_without_a_driver_nothing_happens() -> None:
    assert renew_queues() is False
