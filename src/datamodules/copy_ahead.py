"""Copies batches to a GPU on a side stream while training uses the batches before them."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch", bound=tuple[Any, ...])


def copy_ahead(
    batches: Iterator[Batch], device: torch.device, copied: Callable[[torch.cuda.Event], None] | None = None
) -> Generator[Batch]:
    """Yields the batches, named tuples with tensors in pinned memory, on the device.

    All CUDA calls are made in the calling thread: calls of other threads would break a graph capture. A copy waits for
    the training step of two batches earlier. This bounds the memory on the device and how far the host runs ahead.

    Args:
        copied: gets the event that ends each batch's copy.
    """
    stream = torch.cuda.Stream(device)
    copying: deque[tuple[Batch, torch.cuda.Event]] = deque()

    def arrived() -> Batch:
        batch, end = copying.popleft()
        torch.cuda.current_stream(device).wait_event(end)
        return batch

    for batch in batches:
        fields: dict[str, Any] = batch._asdict()  # type: ignore[attr-defined]
        sources = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        targets = {name: torch.empty_like(source, device=device) for name, source in sources.items()}
        stream.wait_stream(torch.cuda.current_stream(device))  # `targets` may reuse memory that was freed there
        end = torch.cuda.Event()
        with torch.cuda.stream(stream):
            for name, source in sources.items():
                targets[name].copy_(source, non_blocking=True)
            end.record()
        if copied is not None:
            copied(end)
        copying.append((batch._replace(**targets), end))  # type: ignore[attr-defined]
        if len(copying) > 1:
            yield arrived()
    while copying:
        yield arrived()
