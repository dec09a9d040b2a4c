"""Tables of the tensors that one launch of an optimiser's kernel updates, in steps that are eager or captured."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from src.gpu.cuda_graphs import MOST, fill_after_capture
from src.gpu.triton_helpers import power_of_2

NEVER = 2**62  # a block that there is not

Row = tuple[Tensor | None, ...]  # a parameter and what is updated with it, or a gradient
Copies = Mapping[int, Tensor]  # of parameters in the products' dtype, by the parameter's address

with_kernels: WeakSet[Optimizer] = WeakSet()  # their steps divide gradients and write `weight_copies.kept()`


def replace_step(optimizer: Optimizer, take: Callable[[Any, Any], Any]) -> None:
    """Has `optimizer.step(closure)` do `take(optimizer, closure)`, by kernels."""
    # torch's wrapper calls hooks of steps and names them for the profiler.
    optimizer.step = partial(Optimizer.profile_hook_step(take), optimizer)  # type: ignore[method-assign]
    with_kernels.add(optimizer)


class Tables:
    """The tables of one optimiser's steps, eager or captured."""

    def __init__(self) -> None:
        # By launch, shape and device, one for each graph: captures may follow one another, without eager steps between.
        self.spares: dict[Any, list[Tensor]] = {}
        self.captured: list[Tensor] = []  # read by each replay

    def of(self, key: Any, rows: Sequence[Row], block: int, copies: Copies | None = None) -> Tensor | None:
        """Returns a launch's table on the parameters' device; None where a capture has no memory for it.

        A column for each row, as many as the next power of 2: addresses of the row's tensors (0: None), elements of its
        first tensor, the number of that tensor's first block of `block` elements, and the address of its copy (0:
        none). Columns after the last row begin at block NEVER.
        """
        columns, end = list[list[int]](), 0
        for row in rows:
            first = row[0]
            assert first is not None
            target = (copies or {}).get(first.data_ptr())
            columns.append([*map(address, row), first.numel(), end, address(target)])
            end += -(-first.numel() // block)
        columns += [[0] * (len(rows[0]) + 1) + [NEVER, 0]] * (power_of_2(len(rows)) - len(rows))
        values = torch.tensor(columns).T
        first = rows[0][0]
        if first is None or not first.is_cuda:
            return values.contiguous()
        key = key, values.shape, first.device
        if torch.cuda.is_current_stream_capturing():
            if not self.spares.get(key) or not fill_after_capture(self.spares[key][-1], values):
                return None
            self.captured.append(self.spares[key].pop())
            return self.captured[-1]
        if key not in self.spares:
            self.spares[key] = list(torch.empty(MOST, *values.shape, dtype=torch.int64, device=first.device))
        return values.contiguous().pin_memory().to(first.device, non_blocking=True)


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def can_take(tensors: Sequence[Tensor | None]) -> bool:
    """Returns whether a kernel can update float32 tensors, element by element and four at a time."""
    first = tensors[0]
    return (
        first is not None
        and all(tensor is not None and is_readable(tensor) for tensor in tensors)
        and len({(tensor.device, layout(tensor)) for tensor in tensors if tensor is not None}) == 1
    )


def is_readable(tensor: Tensor) -> bool:
    """Returns whether a tensor is one piece of float32 memory that loads of 16 bytes can read."""
    return (
        tensor.layout == torch.strided
        and tensor.dtype == torch.float32
        and tensor.numel() % 4 == 0
        and not tensor.data_ptr() % 16
        and is_dense(tensor)
    )


def layout(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    """Returns length and stride of each dimension that has more than one element."""
    return tuple(pair for pair in zip(tensor.shape, tensor.stride(), strict=True) if pair[0] != 1)


def is_dense(tensor: Tensor) -> bool:
    """Returns whether a tensor's elements fill one piece of memory, in any order."""
    if tensor.is_contiguous():
        return True
    size = 1
    for length, stride in sorted(layout(tensor), key=lambda pair: pair[1]):
        if stride != size:
            return False
        size *= length
    return True


def blocks(rows: Sequence[Row], block: int) -> int:
    """Returns the number of programs of a launch, one for each block of a row's first tensor."""
    return sum(-(-row[0].numel() // block) for row in rows if row[0] is not None)
