"""On a GPU the phases of the compute stream add up to the host's wall time."""

import time

import pytest
import torch

from src.measure.clock import Clock

pytestmark = pytest.mark.gpu


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_phases_of_the_stream_add_up_to_the_wall_time() -> None:
    device = torch.device("cuda")
    matrix = torch.rand(4096, 4096, device=device)
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    clock = Clock(origin_s=time.perf_counter())
    clock.begin_training(device)
    for _ in range(20):
        clock.note("other")
        spin(0.02)
        clock.note("fetch")
        clock.mark("other")
        for _ in range(4):
            torch.mm(matrix, matrix)
        clock.mark("compute", samples=1)
    clock.end_training()
    wall = clock.wall_s()
    assert sum(clock.totals_s.values()) == pytest.approx(wall, rel=0.01)
    # Loading that overlaps with compute is not fetch time.
    hidden = clock.totals_s["compute"]
    assert clock.totals_s["fetch"] + min(hidden, 20 * 0.02) == pytest.approx(max(20 * 0.02, hidden), rel=0.1)
    assert len(clock.steps) == 20
