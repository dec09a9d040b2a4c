"""Small kernels follow each other sooner once a second context has come and gone, and nothing else changes."""

import ctypes
import os
import statistics

import pynvml
import pytest
import torch

from src.gpu.graph_gaps import queues_renewed, renew_queues

KERNELS = 2000
IS_SHARED = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
pytestmark = [
    pytest.mark.gpu, pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(IS_SHARED, reason="other workers' kernels lie in the gaps; run it with -n 0"),
]  # fmt: skip


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


def use_new_streams() -> None:
    """Uses streams for the first time, each of which makes a queue; torch has 32 of a priority, and then none anew."""
    driver = ctypes.CDLL("libcuda.so.1")
    for priority in (0, -1):
        for _ in range(32):
            handle = ctypes.c_void_p()
            assert driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, priority) == 0
            with torch.cuda.stream(torch.cuda.ExternalStream(handle.value or 0)):
                torch.zeros(10, device="cuda")
    torch.cuda.synchronize()


def used_here() -> int | None:
    """Returns the bytes of the GPU that this process uses, which others of the same GPU do not change.

    None where NVML does not tell: the processes of a container have other numbers outside.
    """
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    return next((process.usedGpuMemory for process in processes if process.pid == os.getpid()), None)


def counting_graph(counted: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(KERNELS):
            counted.add_(1)
    return graph


def test_a_graph_of_small_kernels_runs_faster_after_queues_are_renewed() -> None:
    counted = torch.zeros(1 << 16, device="cuda")
    counted.add_(1)
    graph = counting_graph(counted)
    use_new_streams()
    counted.zero_()
    milliseconds(graph)
    before, context, used = milliseconds(graph), current_context(), used_here()
    assert renew_queues(0)
    after = milliseconds(graph)
    print(f"\n{KERNELS} kernels: {before:.3f} ms, then {after:.3f} ms")
    assert current_context() == context
    assert used is None or abs((used_here() or 0) - used) < 32 << 20
    assert counted.eq(60 * KERNELS).all()
    assert after < 0.97 * before


def test_queues_are_renewed_beside_a_capture_too() -> None:
    counted = torch.zeros(1 << 16, device="cuda")
    counted.add_(1)
    use_new_streams()
    graph = counting_graph(counted)
    milliseconds(graph)
    before, context = milliseconds(graph), current_context()
    with queues_renewed():
        graph = counting_graph(counted)
    after = milliseconds(graph)
    print(f"\n{KERNELS} kernels: {before:.3f} ms, then {after:.3f} ms")
    assert current_context() == context
    assert after < 0.97 * before
