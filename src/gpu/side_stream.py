"""Work beside the current stream."""

from functools import cache
from types import TracebackType

import torch
from torch import Tensor


class SideStream:
    """A second stream of a GPU, which begins with `with` where the current one stands, and ends with `join`.

    On a CPU everything happens in its turn. What the stream is to read has to live until it is joined, or be named by
    `reads`.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # of the lowest priority
        self._inside: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            self._inside = torch.cuda.stream(self.stream)
            self._inside.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inside is not None:
            self._inside.__exit__(kind, error, trace)
            self._inside = None

    def join(self) -> None:
        """Lets the current stream wait for it."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def reads(self, *tensors: Tensor) -> None:
        """Keeps memory that these give back, perhaps in a backward pass, from others until the stream has read it."""
        for tensor in tensors:
            if self.stream is not None:
                tensor.record_stream(self.stream)


@cache
def side_stream(device: torch.device) -> SideStream:
    """The one that every call with this device gets: each stream has memory of its own."""
    return SideStream(device)
