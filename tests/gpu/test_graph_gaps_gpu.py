"""Small kernels follow each other sooner once a second context has come and gone, and nothing else changes."""

import ctypes
import statistics

import pytest
import torch

from src.gpu.graph_gaps import renew_queues

KERNELS = 2000
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def current_context() -> int | None:
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def milliseconds(graph: torch.cuda.CUDAGraph) -> float:
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def test_a_graph_of_small_kernels_runs_faster_after_queues_are_renewed() -> None:
    counted = torch.zeros(1 << 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    counted.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            counted.add_(1)
    for priority in (0, -1):  # each first use of a stream makes a queue
        for stream in [torch.cuda.Stream(priority=priority) for _ in range(32)]:
            with torch.cuda.stream(stream):
                torch.zeros(10, device="cuda")
    torch.cuda.synchronize()
    counted.zero_()
    milliseconds(graph)
    before, context, used = milliseconds(graph), current_context(), torch.cuda.mem_get_info()[0]
    assert renew_queues()
    after = milliseconds(graph)
    print(f"\n{KERNELS} kernels: {before:.3f} ms, then {after:.3f} ms")
    assert current_context() == context
    assert abs(torch.cuda.mem_get_info()[0] - used) < 32 << 20
    assert counted.eq(60 * KERNELS).all()
    assert after < 0.97 * before
