"""Averages gradients over all ranks during the backward pass, also in a CUDA graph."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, distributed, nn

from src.gpu.gradient_slots import offer, withdraw
from src.gpu.waiting import Waiting
from src.parallel.direct_transport import SHARED, DirectTransport
from src.parallel.transports import Transport

BUCKET_BYTES = 25 * 2**20  # of a piece at most; each delays the products of the backward pass, so few are best
ALIGNED = 16 // 4  # elements: fused optimisers read 16 bytes at a time


class Bucket:
    """Parameters whose gradients are averaged together: in one piece, or a single large one in several.

    Args:
        number: of the first piece.
        most: elements of a piece.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], number: int, most: int) -> None:
        self.parameters, self.number = list(parameters), number
        self.missing = len(self.parameters)
        self.streams: set[torch.cuda.Stream] = set()  # which this step's gradients come from
        self.begins = [0]
        for parameter in self.parameters:
            self.begins.append(self.begins[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        size = self.begins[-1]
        pieces = range(0, max(size, 1), most) if len(self.parameters) == 1 else (0,)
        self.pieces = [slice(*ends) for ends in zip(pieces, (*pieces[1:], size), strict=True)]

    def parts(self, memory: Tensor) -> list[Tensor]:
        """Returns each parameter's part of the bucket's memory, with the parameter's layout."""
        return [
            memory[begin : begin + parameter.numel()].as_strided(parameter.shape, dense_strides(parameter))
            for begin, parameter in zip(self.begins, self.parameters, strict=False)
        ]

    def fill(self, memory: Tensor, piece: slice) -> None:
        """Copies gradients into the bucket's memory, unless a kernel wrote them there."""
        gradients = [parameter.grad for parameter in self.parameters]
        if len(self.pieces) == 1:
            pairs = [
                (part, gradient)
                for part, gradient in zip(self.parts(memory), gradients, strict=True)
                if gradient is not None and gradient.data_ptr() != part.data_ptr()
            ]
            if pairs:
                torch._foreach_copy_(*map(list, zip(*pairs, strict=True)))  # type: ignore[arg-type]
            return
        (parameter,), (gradient,) = self.parameters, gradients
        assert gradient is not None
        if gradient.data_ptr() == memory.data_ptr():
            return
        if gradient.stride() != dense_strides(parameter):
            if piece.start == 0:
                self.parts(memory)[0].copy_(gradient)
            return
        values = gradient.as_strided((gradient.numel(),), (1,))[piece]
        memory[piece][: len(values)].copy_(values)


Sent = tuple[Bucket, Tensor, list[Callable[[], None]]]  # its memory, and a function for each piece that waits for it


class GradientAverage:
    """Replaces each rank's gradients by their mean over all ranks, like DistributedDataParallel.

    Buckets follow the order in which the first backward pass of rank 0 finished the gradients; every rank averages the
    same buckets in that order. A parameter has a gradient on all ranks or on none. Unlike DistributedDataParallel it
    needs no wrapper around the module and can be captured in a CUDA graph.

    Args:
        parameters: alike on all ranks. They have no gradients before a backward pass.
        waiting: measures how long `averaged` waits.
        dtype: of the all-reduce; the gradients' own if not given. A 16-bit one halves the bytes and rounds.
        max_bytes: of a piece.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        waiting: Waiting,
        dtype: torch.dtype | None = None,
        max_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.waiting, self.dtype, self.max_bytes = waiting, dtype, max_bytes
        self.parameters = list(parameters)
        self.buckets: list[Bucket] = []  # empty until the first backward pass has shown the order
        self.bucket_of: dict[Tensor, Bucket] = {}
        self.arrived: list[Tensor] = []
        self.slots: dict[nn.Parameter, Tensor] = {}  # the buckets' memory, the same in every step
        self.last: list[Bucket] = []  # after which almost no computation is left
        self.transport = Transport()
        device = self.parameters[0].device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.next = 0  # index of the next bucket to average
        self.sent: list[Sent] = []
        self.is_last = True  # of the backward passes of a step: only its gradients are averaged
        self.hooks = [parameter.register_post_accumulate_grad_hook(self._on_arrival) for parameter in self.parameters]

    def _settle(self) -> None:
        """Builds the buckets in the order of rank 0's first backward pass."""
        whole = distributed.get_world_size() * SHARED  # so that the pieces of a large gradient lie end to end
        come, missing = (buckets(parameters, self.max_bytes) for parameters in self._order())
        for group in (*come, *missing):
            number = sum(len(bucket.pieces) for bucket in self.buckets)
            most = max(1, self.max_bytes // group[0].element_size() // whole) * whole
            self.buckets.append(Bucket(group, number, most))
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.last = last_of(self.buckets[: len(come)], self.max_bytes)
        self.transport = self._make_transport()
        if isinstance(self.transport, DirectTransport) and self.dtype is None:
            for bucket in self.buckets:
                self.slots |= dict(zip(bucket.parameters, bucket.parts(self._memory(bucket)), strict=True))

    def _order(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Returns the parameters in the order of their gradients on rank 0, and those without one."""
        number_of: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(self.parameters)}
        come = [number_of[parameter] for parameter in self.arrived]
        missing = sorted(set(number_of.values()) - set(come))
        agreed = torch.tensor(come + missing, device=self.parameters[0].device)
        distributed.broadcast(agreed, 0)
        order = [self.parameters[number] for number in agreed.tolist()]
        return order[: len(come)], order[len(come) :]

    def _make_transport(self) -> Transport:
        dtypes = {self.dtype or bucket.parameters[0].dtype for bucket in self.buckets}
        if len(dtypes) > 1:
            return Transport()
        numbers = [piece.stop - piece.start for bucket in self.buckets for piece in bucket.pieces]
        device = self.buckets[0].parameters[0].device
        return DirectTransport.if_supported(numbers, dtypes.pop(), device) or Transport()

    def close(self) -> None:
        """Removes the hooks and withdraws the gradient slots."""
        for hook in self.hooks:
            hook.remove()
        withdraw(self.slots.values())

    def _on_arrival(self, parameter: Tensor) -> None:
        if not self.is_last:
            return
        if not self.buckets:
            self.arrived.append(parameter)
            return
        bucket = self.bucket_of[parameter]
        bucket.missing -= 1
        if self.stream is not None:
            bucket.streams.add(torch.cuda.current_stream())
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self._send(self.buckets[self.next])

    def _send(self, bucket: Bucket) -> None:
        self.next += 1
        bucket.missing = len(bucket.parameters)
        if all(parameter.grad is None for parameter in bucket.parameters):
            return
        waits = []
        with self._beside(bucket):
            memory = self._memory(bucket)
            for number, piece in enumerate(bucket.pieces, bucket.number):
                bucket.fill(memory, piece)
                waits.append(self.transport.average(number, memory[piece], bucket in self.last))
        self.sent.append((bucket, memory, waits))

    def _memory(self, bucket: Bucket) -> Tensor:
        first = bucket.parameters[0]
        return self.transport.empty(bucket.number, bucket.begins[-1], self.dtype or first.dtype, first.device)

    @contextmanager
    def _beside(self, bucket: Bucket) -> Iterator[None]:
        """Runs on a side stream, after the bucket's gradients, so that copies overlap with the backward pass."""
        if self.stream is None:
            yield
            return
        for stream in (torch.cuda.current_stream(), *bucket.streams):
            self.stream.wait_stream(stream)
        bucket.streams.clear()
        with torch.cuda.stream(self.stream):
            yield

    @torch.no_grad()
    def averaged(self) -> Iterator[list[nn.Parameter]]:
        """Yields parameters whose gradient is the mean over all ranks, in two lists; must be iterated to the end.

        The first list may be read while the last buckets are still averaged. Gradients may be written only after the
        end: other ranks may still read this rank's part of the means.
        """
        if not self.buckets:
            self._settle()
        while self.next < len(self.buckets):  # a pass without all gradients leaves some over
            self._send(self.buckets[self.next])
        early, late = ([sent for sent in self.sent if (sent[0] in self.last) == last] for last in (False, True))
        self.sent, self.next = [], 0
        if early:
            yield self._received(early)
        received = self._received(late, finish=True)
        offer(self.slots)  # no rank reads there any more
        yield received

    def _received(self, sent: list[Sent], finish: bool = False) -> list[nn.Parameter]:
        with self.waiting():
            for _, _, waits in sent:
                for wait in waits:
                    wait()
            if finish:
                self.transport.finish()
        received = []
        for bucket, memory, _ in sent:
            memory = memory.to(bucket.parameters[0].dtype)
            for part, parameter in zip(bucket.parts(memory), bucket.parameters, strict=True):
                if parameter.grad is not None:
                    parameter.grad = part
                    received.append(parameter)
        return received


def bucket_dtype(name: str | None) -> torch.dtype | None:
    """Returns the dtype that `execution.gradient_dtype` names."""
    return {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def buckets(parameters: Sequence[nn.Parameter], max_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """Splits parameters, in the order of their gradients, into buckets of one dtype and at most `max_bytes` bytes.

    A larger gradient has a bucket of its own, so that its all-reduce overlaps with the rest of the backward pass. The
    last bucket overlaps with nothing, so it is short where possible.
    """
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not groups or size + parameter.nbytes > max_bytes or parameter.dtype != groups[-1][0].dtype:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.nbytes
    end = groups[-1] if len(groups) > 1 else []
    few = sum(behind <= max_bytes / 16 for behind in accumulate(parameter.nbytes for parameter in reversed(end)))
    if (cut := len(end) - max(1, few)) > 0:
        groups[-1:] = [end[:cut], end[cut:]]
    return groups


def last_of(filled: Sequence[Bucket], max_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """Returns the last bucket, and those before it that are followed by few bytes.

    A node of the backward pass that computes a large gradient may compute small ones too, which follow it.
    """
    last: list[Bucket] = []
    behind = 0
    for bucket in reversed(filled):
        if behind > max_bytes / 8:
            break
        last.append(bucket)
        behind += sum(parameter.nbytes for parameter in bucket.parameters)
    return last


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Returns the strides of a tensor without gaps that has the same order of dimensions in memory."""
    return torch.empty_like(tensor, device="meta").stride()
