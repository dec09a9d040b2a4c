"""Gradients averaged over all ranks while the backward pass still goes on, in a CUDA graph too."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, distributed, nn

from src.gpu.waiting import Waiting
from src.parallel.direct_transport import SHARED, DirectTransport
from src.parallel.gradient_slots import offer, withdraw
from src.parallel.transports import Transport

ENOUGH = 25 * 2**20  # bytes of a message at most. Each is in the way of the products that go on: few are best
ALIGNED = 16 // 4  # numbers: fused optimisers read 16 bytes at a time


class Bucket:
    """Parameters whose gradients travel together: in one message, or a large one's alone in several.

    Args:
        number: of the first message.
        most: numbers that a message may hold.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], number: int, most: int) -> None:
        self.parameters, self.number = list(parameters), number
        self.missing = len(self.parameters)
        self.begins = [0]
        for parameter in self.parameters:
            self.begins.append(self.begins[-1] + -(-parameter.numel() // ALIGNED) * ALIGNED)
        size = self.begins[-1]
        pieces = range(0, max(size, 1), most) if len(self.parameters) == 1 else (0,)
        self.pieces = [slice(*ends) for ends in zip(pieces, (*pieces[1:], size), strict=True)]

    def parts(self, memory: Tensor) -> list[Tensor]:
        """Where in the messages' memory each parameter's gradient is, laid out as the parameter itself."""
        return [
            memory[begin : begin + parameter.numel()].as_strided(parameter.shape, dense_strides(parameter))
            for begin, parameter in zip(self.begins, self.parameters, strict=False)
        ]

    def fill(self, memory: Tensor, piece: slice) -> None:
        """Copies gradients to where they travel from, unless they are there."""
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
        given = gradient.as_strided((gradient.numel(),), (1,))[piece]
        memory[piece][: len(given)].copy_(given)


Sent = tuple[Bucket, Tensor, list[Callable[[], None]]]  # the memory of its messages, and what waits for each of them


class GradientAverage:
    """The mean over all ranks in the place of each rank's own gradients, as DistributedDataParallel makes it.

    The gradients that a backward pass finishes first travel first, as the first pass has shown on rank 0; every rank
    sends the same messages in one order. A parameter has a gradient on all ranks or on none. Unlike
    DistributedDataParallel it needs no wrapper around the module, and its messages may be part of a CUDA graph.

    Args:
        parameters: alike on all ranks. They have no gradients before a backward pass.
        waiting: is told how long `arrivals` waits.
        dtype: that gradients travel in; their own if not given. Half the bytes, with the rounding that this brings.
        enough: bytes of a message at most.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        waiting: Waiting,
        dtype: torch.dtype | None = None,
        enough: int = ENOUGH,
    ) -> None:
        self.waiting, self.dtype, self.enough = waiting, dtype, enough
        self.parameters = list(parameters)
        self.buckets: list[Bucket] = []  # until the first backward pass has shown what comes first
        self.bucket_of: dict[Tensor, Bucket] = {}
        self.arrived: list[Tensor] = []
        self.places: dict[nn.Parameter, Tensor] = {}  # where gradients travel from, the same in every step
        self.last: list[Bucket] = []  # behind which next to nothing is left to be computed
        self.messages = Transport()
        device = self.parameters[0].device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.next = 0  # the bucket that is to be sent next
        self.sent: list[Sent] = []
        self.is_last = True  # of the backward passes whose gradients are summed up: only then they travel
        self.hooks = [parameter.register_post_accumulate_grad_hook(self._on_arrival) for parameter in self.parameters]

    def _settle(self) -> None:
        """Makes the buckets, in the order in which gradients have come on rank 0."""
        whole = distributed.get_world_size() * SHARED  # so that the messages of a large gradient lie end to end
        come, missing = (buckets(parameters, self.enough) for parameters in self._order())
        for own in (*come, *missing):
            number = sum(len(bucket.pieces) for bucket in self.buckets)
            most = max(1, self.enough // own[0].element_size() // whole) * whole
            self.buckets.append(Bucket(own, number, most))
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.last = last_of(self.buckets[: len(come)], self.enough)
        self.messages = self._messages()
        if isinstance(self.messages, DirectTransport) and self.dtype is None:
            for bucket in self.buckets:
                self.places |= dict(zip(bucket.parameters, bucket.parts(self._memory(bucket)), strict=True))

    def _order(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters as their gradients came on rank 0, and those without one."""
        number_of: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(self.parameters)}
        come = [number_of[parameter] for parameter in self.arrived]
        missing = sorted(set(number_of.values()) - set(come))
        agreed = torch.tensor(come + missing, device=self.parameters[0].device)
        distributed.broadcast(agreed, 0)
        order = [self.parameters[number] for number in agreed.tolist()]
        return order[: len(come)], order[len(come) :]

    def _messages(self) -> Transport:
        dtypes = {self.dtype or bucket.parameters[0].dtype for bucket in self.buckets}
        if len(dtypes) > 1:
            return Transport()
        numbers = [piece.stop - piece.start for bucket in self.buckets for piece in bucket.pieces]
        device = self.buckets[0].parameters[0].device
        return DirectTransport.of(numbers, dtypes.pop(), device) or Transport()

    def close(self) -> None:
        """Leaves the gradients alone from now on."""
        for hook in self.hooks:
            hook.remove()
        withdraw(self.places.values())

    def _on_arrival(self, parameter: Tensor) -> None:
        if not self.is_last:
            return
        if not self.buckets:
            self.arrived.append(parameter)
            return
        self.bucket_of[parameter].missing -= 1
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self._send(self.buckets[self.next])

    def _send(self, bucket: Bucket) -> None:
        self.next += 1
        bucket.missing = len(bucket.parameters)
        if all(parameter.grad is None for parameter in bucket.parameters):
            return
        waits = []
        with self._beside():
            memory = self._memory(bucket)
            for number, piece in enumerate(bucket.pieces, bucket.number):
                bucket.fill(memory, piece)
                waits.append(self.messages.average(number, memory[piece], bucket in self.last))
        self.sent.append((bucket, memory, waits))

    def _memory(self, bucket: Bucket) -> Tensor:
        first = bucket.parameters[0]
        return self.messages.empty(bucket.number, bucket.begins[-1], self.dtype or first.dtype, first.device)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """On a stream of its own, so that copies of gradients fill gaps of the backward pass that goes on."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    @torch.no_grad()
    def arrivals(self) -> Iterator[list[nn.Parameter]]:
        """Puts the means in the gradients' places, and names the parameters that have theirs; to be gone through whole.

        First those of all messages but the last ones, to be read while these still travel. To be written only when all
        are there: other ranks may still fetch this one's part of the means.
        """
        if not self.buckets:
            self._settle()
        while self.next < len(self.buckets):  # what a pass without all gradients has left over
            self._send(self.buckets[self.next])
        early, late = ([each for each in self.sent if (each[0] in self.last) == last] for last in (False, True))
        self.sent, self.next = [], 0
        if early:
            yield self._received(early)
        received = self._received(late, finish=True)
        offer(self.places)  # nobody reads there any more
        yield received

    def _received(self, sent: list[Sent], finish: bool = False) -> list[nn.Parameter]:
        with self.waiting():
            for _, _, waits in sent:
                for wait in waits:
                    wait()
            if finish:
                self.messages.finish()
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


def buckets(parameters: Sequence[nn.Parameter], enough: int = ENOUGH) -> list[list[nn.Parameter]]:
    """Parameters in the order in which their gradients come.

    They have one dtype, and no more than `enough` bytes unless there is but one: a large gradient behind small ones
    does not wait for the next. The last of several messages hides behind nothing, so it is short if it can be.
    """
    found: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if not found or size + parameter.nbytes > enough or parameter.dtype != found[-1][0].dtype:
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += parameter.nbytes
    end = found[-1] if len(found) > 1 else []
    few = sum(behind <= enough / 16 for behind in accumulate(parameter.nbytes for parameter in reversed(end)))
    if (cut := len(end) - max(1, few)) > 0:
        found[-1:] = [end[:cut], end[cut:]]
    return found


def last_of(filled: Sequence[Bucket], enough: int = ENOUGH) -> list[Bucket]:
    """The bucket that is filled last, and those before it behind which there is next to nothing.

    The node of a backward pass that makes a large gradient may make small ones too, which come after it.
    """
    found: list[Bucket] = []
    behind = 0
    for bucket in reversed(filled):
        if behind > enough / 8:
            break
        found.append(bucket)
        behind += sum(parameter.nbytes for parameter in bucket.parameters)
    return found


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of a tensor of the same order of dimensions in memory (channels-last, say) and without gaps."""
    return torch.empty_like(tensor, device="meta").stride()
