"""Runs any function of a batch as CUDA graphs, one for each shape of the batch; for training and inference."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from src.gpu.graph_gaps import queues_renewed
from src.gpu.tuned_products import searching

T = TypeVar("T")
Shapes = tuple[torch.Size, ...]
LARGE = 2**20  # bytes of a tensor of a batch
MOST = 4  # graphs of a function

# While a `Graphed` captures: tensors on the GPU, and the values on the host that they get after it.
_to_fill: list[tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True)
class Capture(Generic[T]):
    """One graph with the memory that it reads its batch from and writes its result to."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: T

    def replay(self, tensors: list[Tensor]) -> T:
        fill(self.inputs, tensors)
        self.graph.replay()
        return self.result


def fill(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies tensors: small ones of a dtype by one kernel, whose programs copy 65,536 elements each, others alone."""
    groups: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.nbytes >= LARGE:
            target.copy_(source, non_blocking=True)
        else:
            groups.setdefault(target.dtype, []).append((target, source))
    for pairs in groups.values():
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)), non_blocking=True)  # type: ignore[call-overload]  # pyright: ignore


def fill_after_capture(target: Tensor, values: Tensor) -> bool:
    """Copies `values` from the host to `target` when the `Graphed` that captures now has ended; False if none does.

    `target` must be from before the capture: memory of the graphs' pool may be an earlier graph's too.
    """
    if _to_fill is not None:
        _to_fill.append((target, values))
    return _to_fill is not None


class Graphed(Generic[T]):
    """Calls `function`; with `graph`, from the call after `warmup` of a shape on as a captured CUDA graph.

    A batch is any nest of tuples, lists and dicts of tensors. Each shape has a graph of its own, up to `most` of them:
    ragged data comes in a few buckets, and what fits none of them runs as it is. Warm-up calls run eagerly on the
    stream that the capture uses (compilation and autotuning happen there), and count: each of them is a whole call.

    The function must not wait for the device and must read nothing that changes but the batch's tensors, parameters,
    buffers and the default generator; other leaves of the batch (numbers) are those of the capture in every replay.
    What it returns is overwritten by the next call. All graphs share one pool of memory: what a call makes and does
    not return (gradients) is gone when it ends.
    """

    def __init__(self, function: Callable[..., T], graph: bool, warmup: int = 3, most: int = MOST) -> None:
        self.function, self.warmup, self.most = function, warmup, most
        # High priority, so that side streams of the function fill its gaps and do not delay it.
        self.stream = torch.cuda.Stream(priority=-1) if graph else None
        self.captures: dict[Shapes, Capture[T]] = {}
        self._calls: Counter[Shapes] = Counter()

    def __call__(self, *batch: Any) -> T:
        if self.stream is None:
            return self.function(*batch)
        leaves, structure = tree_flatten(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes in self.captures:
            return self.captures[shapes].replay(tensors)
        self._calls[shapes] += 1
        if self._calls[shapes] <= self.warmup or len(self.captures) == self.most:
            with searching(self._calls[shapes] == self.warmup and len(self.captures) < self.most):
                return self._eager(self.stream, *batch)
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.captures[shapes] = self._capture(self.stream, static, tree_unflatten(static, structure))
        return self.captures[shapes].replay(tensors)

    def warm_up(self, *batch: Any) -> None:
        """Calls the function until a batch of this shape is captured. For functions that change nothing."""
        for _ in range(self.warmup + 1 if self.stream is not None else 1):
            self(*batch)

    def _eager(self, stream: torch.cuda.Stream, *batch: Any) -> T:
        main = torch.cuda.current_stream()
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            result = self.function(*batch)
        main.wait_stream(stream)
        return result

    def _capture(self, stream: torch.cuda.Stream, leaves: list[Any], batch: Any) -> Capture[T]:
        """Records one call on `batch`, made of `leaves`, without running it."""
        global _to_fill
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.captures.values())).graph.pool() if self.captures else None
        torch.cuda.synchronize()
        # Queues are renewed after the warm-up calls, which use new streams. Other threads may wait for the device
        # meanwhile: NCCL watches its collectives.
        graphing = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
        _to_fill = []
        try:
            with queues_renewed(), graphing:
                result = self.function(*batch)
            for target, values in _to_fill:
                target.copy_(values)
        finally:
            _to_fill = None
        return Capture(graph, inputs, result)
