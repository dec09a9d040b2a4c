"""Gradients averaged over all ranks while the backward pass still goes on, in a CUDA graph too."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from src.errors import UserError
from src.measure.waiting import Waiting

LARGEST = 25 * 2**20  # bytes of a message at most, but for a parameter that has more
MESSAGES = 8  # of about equal size, which travel while later gradients are computed;
SMALLEST = 2**17  # towards the end each has half of what is left, down to so many bytes: what nothing hides is soon there
ALIGNED = 16 // 4  # numbers: fused optimisers read 16 bytes at a time


class Bucket:
    """Parameters whose gradients travel in one message."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.missing = len(self.parameters)
        self.begins = [0]
        for parameter in self.parameters:
            self.begins.append(self.begins[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)

    def parts(self, message: Tensor) -> list[Tensor]:
        """Where in a message each parameter's gradient is, laid out in memory as the parameter itself."""
        return [
            message[begin : begin + parameter.numel()].as_strided(parameter.shape, dense_strides(parameter))
            for begin, parameter in zip(self.begins, self.parameters, strict=False)
        ]


class Messages:
    """Memory for what travels, and how it does: through torch.distributed's group of all ranks."""

    def empty(self, number: int, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A message to be filled; `number` counts the messages of a step."""
        return torch.empty(numbers, dtype=dtype, device=device)

    def average(self, number: int, message: Tensor) -> Callable[[], None]:
        """Begins to put the mean over all ranks in the message's place; returns what waits for it."""
        return average(message).wait

    def finish(self) -> None:
        """After the waiting: the last chance to do something about this step."""


class GradientAverage:
    """The mean over all ranks in the place of each rank's own gradients, as DistributedDataParallel makes it.

    The gradients that a backward pass finishes first travel first; every rank sends the same messages in one order. A
    parameter has a gradient on all ranks or on none. Unlike DistributedDataParallel it needs no wrapper around the
    module, and its messages may be part of a CUDA graph.

    Args:
        parameters: in the order of the forward pass, alike on all ranks. They have no gradients before a backward pass.
        waiting: is told how long `finish` waits.
        dtype: that gradients travel in; their own if not given. Half the bytes, with the rounding that this brings.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], waiting: Waiting, dtype: torch.dtype | None = None) -> None:
        self.waiting, self.dtype = waiting, dtype
        self.buckets = [Bucket(own) for own in buckets(parameters)]
        self.messages = Messages()
        self.next = 0  # the bucket that is to be sent next
        self.sent: list[tuple[Bucket, Tensor, Callable[[], None]]] = []
        self.is_last = True  # of the backward passes whose gradients are summed up: only then they travel
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))
            for bucket in self.buckets
            for parameter in bucket.parameters
        ]

    def close(self) -> None:
        """Leaves the gradients alone from now on."""
        for hook in self.hooks:
            hook.remove()

    def _arrived(self, bucket: Bucket, parameter: Tensor) -> None:
        if not self.is_last:
            return
        bucket.missing -= 1
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self._send(self.buckets[self.next])

    def _send(self, bucket: Bucket) -> None:
        number, self.next = self.next, self.next + 1
        bucket.missing = len(bucket.parameters)
        first = bucket.parameters[0]
        message = self.messages.empty(number, bucket.begins[-1], self.dtype or first.dtype, first.device)
        pairs = [
            (part, parameter.grad)
            for part, parameter in zip(bucket.parts(message), bucket.parameters, strict=True)
            if parameter.grad is not None
        ]
        if not pairs:
            return
        torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))  # type: ignore[arg-type]
        self.sent.append((bucket, message, self.messages.average(number, message)))

    @torch.no_grad()
    def finish(self) -> None:
        """Sends what a pass without all gradients has left over, waits, and puts the means in the gradients' places."""
        while self.next < len(self.buckets):
            self._send(self.buckets[self.next])
        with self.waiting():
            for _, _, wait in self.sent:
                wait()
            self.messages.finish()
        for bucket, message, _ in self.sent:
            message = message.to(bucket.parameters[0].dtype)
            for part, parameter in zip(bucket.parts(message), bucket.parameters, strict=True):
                if parameter.grad is not None:
                    parameter.grad = part
        self.sent, self.next = [], 0


def travelling_dtype(name: str | None) -> torch.dtype | None:
    """What `execution.gradient_dtype` names. Raises UserError for what it may not be."""
    names = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
    if name not in names:
        raise UserError(f"execution.gradient_dtype={name} is unknown; give bf16, fp16 or null")
    return names[name]


def average(message: Tensor) -> Any:
    """Begins to average over all ranks, in place; returns what to wait for."""
    if distributed.get_backend() == "nccl":
        return distributed.all_reduce(message, distributed.ReduceOp.AVG, async_op=True)
    message.div_(distributed.get_world_size())  # gloo knows sums only
    return distributed.all_reduce(message, async_op=True)


def buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters from the last to the first, as gradients come, in messages of one dtype each."""
    left = sum(parameter.nbytes for parameter in parameters)
    enough = min(LARGEST, left // MESSAGES)
    found: list[list[nn.Parameter]] = []
    size = limit = 0
    for parameter in reversed(parameters):
        if size >= limit or parameter.dtype != found[-1][0].dtype:
            found.append([])
            size, limit = 0, max(SMALLEST, min(enough, left // 2))
        found[-1].append(parameter)
        size += parameter.nbytes
        left -= parameter.nbytes
    return found


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of a tensor of the same order of dimensions in memory (channels-last, say) and without gaps."""
    return torch.empty_like(tensor, device="meta").stride()
