"""A second stream for work that overlaps with the current one."""

from functools import cache
from types import TracebackType

import torch
from torch import Tensor


class SideStream:
    """A side stream of a GPU: `with` starts it after the current stream's work, `join` makes that stream wait for it.

    On a CPU the work runs in order. Tensors that the side stream reads must live until `join`, or be passed to `reads`.
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
        """Makes the current stream wait for the side stream."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def reads(self, *tensors: Tensor) -> None:
        """Keeps these tensors' memory from being reused before the side stream has read it."""
        for tensor in tensors:
            if self.stream is not None:
                tensor.record_stream(self.stream)


@cache
def side_stream(device: torch.device) -> SideStream:
    """Returns the one side stream of a device: each further stream would have memory of its own."""
    return SideStream(device)
