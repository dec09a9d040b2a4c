"""Times device work without launch gaps, by capturing calls in a CUDA graph."""

from collections.abc import Callable
from statistics import median

import torch


def device_ms(function: Callable[[], object], calls: int = 10, repeats: int = 5) -> float:
    """Returns the device time of one call of `function` in ms: the median over `repeats` replays of `calls` calls.

    `function` must be capturable: no host reads. It is called twice before the capture, to compile its kernels.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            function()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return median(times)
