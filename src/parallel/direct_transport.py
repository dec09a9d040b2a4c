"""Buckets averaged through memory that the GPUs of one machine share: by copy engines, the last ones by a kernel.

NCCL's kernels hold multiprocessors while they wait and send, and products that count on all of them take another round.
Copy engines take none of them, but are slower; where nothing else is left to be computed, a kernel is in nobody's way.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from src.gpu.triton_helpers import launch, package
from src.parallel.shared_memory import on_every_rank, refusal, shared_memory
from src.parallel.transports import Transport

SHARED = 32  # numbers: what a rank's share of a message is a multiple of
KERNELS = "src.parallel.transports_triton"
MEAN = {"BLOCK": 4096, "num_warps": 16}
PROGRAMS = 64  # of a kernel that reads and writes other GPUs' memory: more are no faster


class DirectTransport(Transport):
    """`Transport` for ranks that reach each other's memory.

    Each rank fetches its share of a message from all others, averages it, and fetches the others' means of theirs: one
    rank alone averages a share, so all ranks have the same bits, and so has another run. Means of a message come back
    while the next one's shares are fetched. Of a last message a rank reads its share straight out of all memories, and
    writes the mean there.

    Args:
        memory: of each rank, 0 at first, of at least `needed(numbers, ranks)` numbers.
        rank: whose memory is this process's own.
        barrier: waits on the current stream until every rank is there, and sees what they have written before. Its
            argument, 0 or 1, tells barriers on one stream from those on another.
        numbers: of each message. Of several that lie end to end all but the last are multiples of ranks x SHARED.
    """

    def __init__(
        self, memory: Sequence[Tensor], rank: int, barrier: Callable[[int], None], numbers: Sequence[int]
    ) -> None:
        self.memory, self.rank, self.barrier = memory, rank, barrier
        self.shares = [share_of(each, len(memory)) for each in numbers]
        self.begins = [len(memory) * sum(self.shares[:number]) for number in range(len(numbers))]
        mine = memory[rank]
        self.fetched = mine.new_empty(2, len(memory) - 1, max(self.shares))  # of this message and of the next
        numbered = range(len(numbers))
        everywhere = [[self._part(number, other, rank) for other in range(len(memory))] for number in numbered]
        here = [[self._part(number, rank, rank), *fetched] for number in numbered for fetched in self.fetched]
        self.everywhere, self.here = (  # where the kernel finds what it averages
            torch.tensor([[part.data_ptr() for part in parts] for parts in each], device=mine.device)
            for each in (everywhere, here)
        )
        self.streams = [torch.cuda.Stream(mine.device) for _ in range(2)] if mine.is_cuda else []
        self.averaged: list[Any] = []  # events of this step: what was fetched of a message is done with

    @classmethod
    def of(cls, numbers: Sequence[int], dtype: torch.dtype, device: torch.device) -> "DirectTransport | None":
        """They, where every rank can have them: on one machine whose GPUs reach each other's memory. All ranks ask."""
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != world:
            return None

        def made() -> DirectTransport:
            total = needed(numbers, world)
            handle = shared_memory(total, dtype, device)
            memory = [handle.get_buffer(each, (total,), dtype) for each in range(world)]
            memory[rank].zero_()
            return cls(memory, rank, handle.barrier, numbers)

        missing = refusal() or (None if package(KERNELS) else "Triton is not installed")
        instead = "gradients travel through NCCL, not straight out of the other GPUs' memory"
        return on_every_rank(made, device, instead, missing)

    def empty(self, number: int, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory[self.rank][self.begins[number] :][:numbers]

    def average(self, number: int, message: Tensor, last: bool = False) -> Callable[[], None]:
        if not self.streams:
            self._begin(number, last, 0)
            if not last:
                self._end(number, 0)
            return lambda: None
        fetching, returning = self.streams
        place = len(self.averaged) % 2
        fetching.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(fetching):
            if len(self.averaged) > 1:
                fetching.wait_event(self.averaged[-2])
            self._begin(number, last, place)
            done = fetching.record_event()
        if not last:
            returning.wait_stream(fetching)
            with torch.cuda.stream(returning):
                self._end(number, place)
                done = returning.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)

    def _begin(self, number: int, last: bool, place: int) -> None:
        """Fetches the others' parts of this rank's share; averages them at once where they are, if it is the last."""
        self.barrier(0)  # everybody's message is written
        share = self.shares[number]
        if last:
            self._mean(self.everywhere[number], share, written=len(self.memory), programs=PROGRAMS)
            return
        for slot, other in enumerate(self._others()):
            self.fetched[place, slot, :share].copy_(self._part(number, other, self.rank))

    def _end(self, number: int, place: int) -> None:
        """Averages this rank's share, and fetches the others'."""
        share = self.shares[number]
        self._mean(self.here[2 * number + place], share, written=1, programs=-(-share // MEAN["BLOCK"]))
        if self.streams:
            self.averaged.append(self.streams[1].record_event())
        self.barrier(1)  # everybody's share is averaged
        for other in self._others():
            self._part(number, self.rank, other).copy_(self._part(number, other, other))

    def _mean(self, addresses: Tensor, share: int, written: int, programs: int) -> None:
        kernels, ranks = package(KERNELS), len(self.memory)
        assert kernels is not None
        launch(
            kernels.mean, (programs,), addresses, self.memory[self.rank], share, programs,
            PLACES=ranks, WRITTEN=written, **MEAN,
        )  # fmt: skip

    def _others(self) -> list[int]:
        """In an order in which no two ranks fetch from the same one at a time."""
        ranks = len(self.memory)
        return [(self.rank + step) % ranks for step in range(1, ranks)]

    def _part(self, number: int, whose: int, of: int) -> Tensor:
        """The share of a rank in the message of another one."""
        share = self.shares[number]
        return self.memory[whose][self.begins[number] + of * share :][:share]

    def finish(self) -> None:
        self.barrier(0)  # nobody reads or writes here any more: the last message is whole, the next step may write
        self.averaged.clear()


def share_of(numbers: int, ranks: int) -> int:
    """Numbers of a message that one rank averages."""
    return -(-numbers // (ranks * SHARED)) * SHARED


def needed(numbers: Sequence[int], ranks: int) -> int:
    """Numbers that a rank's memory for messages of such sizes has."""
    return ranks * sum(share_of(each, ranks) for each in numbers)
