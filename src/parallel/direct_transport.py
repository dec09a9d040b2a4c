"""Averages buckets through shared memory of the GPUs of one machine: by copy engines, the last ones by a kernel.

NCCL's kernels occupy multiprocessors while they wait and send, which slows products that are tiled for all of them.
Copy engines occupy none but are slower; for the last buckets, with no computation left to overlap, a kernel is faster.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from src.gpu.triton_helpers import launch, package
from src.parallel.shared_memory import on_every_rank, refusal, shared_memory
from src.parallel.transports import Transport

SHARED = 32  # elements: a rank's share of a piece is a multiple of it
KERNELS = "src.parallel.transports_triton"
MEAN = {"BLOCK": 4096, "num_warps": 16}
PROGRAMS = 64  # of the kernel that reads and writes other GPUs' memory; more were not faster


class DirectTransport(Transport):
    """`Transport` for ranks that can read and write each other's memory.

    Reduce-scatter and all-gather: each rank reads its share of a piece from all others, averages it, and reads the
    others' means. One rank averages a share, so all ranks have the same bits, in every run. The all-gather of a piece
    overlaps with the reduce-scatter of the next. For the last pieces one kernel reads a rank's share from all memories
    and writes the mean to all.

    Args:
        memory: of each rank, zeros, at least `needed(elements, ranks)` elements.
        rank: of this process.
        barrier: waits on the current stream until every rank is there, and makes their writes visible. Its argument, 0
            or 1, separates the barriers of two streams.
        elements: of each piece. Of several that lie end to end all but the last are multiples of ranks x SHARED.
    """

    def __init__(
        self, memory: Sequence[Tensor], rank: int, barrier: Callable[[int], None], elements: Sequence[int]
    ) -> None:
        self.memory, self.rank, self.barrier = memory, rank, barrier
        self.shares = [share_of(size, len(memory)) for size in elements]
        self.begins = [len(memory) * sum(self.shares[:number]) for number in range(len(elements))]
        mine = memory[rank]
        self.fetched = mine.new_empty(2, len(memory) - 1, max(self.shares))  # of this piece and the next
        numbered = range(len(elements))
        everywhere = [[self._part(number, other, rank) for other in range(len(memory))] for number in numbered]
        here = [[self._part(number, rank, rank), *fetched] for number in numbered for fetched in self.fetched]
        self.everywhere, self.here = (  # addresses for the kernel
            torch.tensor([[part.data_ptr() for part in parts] for parts in pieces], device=mine.device)
            for pieces in (everywhere, here)
        )
        self.streams = [torch.cuda.Stream(mine.device) for _ in range(2)] if mine.is_cuda else []
        self.averaged: list[Any] = []  # events of this step: a piece is averaged, its fetched shares may be overwritten

    @classmethod
    def if_supported(
        cls, elements: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> "DirectTransport | None":
        """Returns the transport if all ranks are on one machine whose GPUs share memory, else None. Collective."""
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != world:
            return None

        def make() -> DirectTransport:
            total = needed(elements, world)
            handle = shared_memory(total, dtype, device)
            memory = [handle.get_buffer(peer, (total,), dtype) for peer in range(world)]
            memory[rank].zero_()
            return cls(memory, rank, handle.barrier, elements)

        missing = refusal() or (None if package(KERNELS) else "Triton is not installed")
        instead = "gradients are averaged by NCCL, not through shared GPU memory"
        return on_every_rank(make, device, instead, missing)

    def empty(self, number: int, elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory[self.rank][self.begins[number] :][:elements]

    def average(self, number: int, piece: Tensor, last: bool = False) -> Callable[[], None]:
        if not self.streams:
            self._begin(number, last, 0)
            if not last:
                self._end(number, 0)
            return lambda: None
        fetching, returning = self.streams
        half = len(self.averaged) % 2
        fetching.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(fetching):
            if len(self.averaged) > 1:
                fetching.wait_event(self.averaged[-2])
            self._begin(number, last, half)
            done = fetching.record_event()
        if not last:
            returning.wait_stream(fetching)
            with torch.cuda.stream(returning):
                self._end(number, half)
                done = returning.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)

    def _begin(self, number: int, last: bool, half: int) -> None:
        """Reads the others' parts of this rank's share; for a last piece averages them in place."""
        self.barrier(0)  # every rank's piece is written
        share = self.shares[number]
        if last:
            self._mean(self.everywhere[number], share, written=len(self.memory), programs=PROGRAMS)
            return
        for slot, other in enumerate(self._others()):
            self.fetched[half, slot, :share].copy_(self._part(number, other, self.rank))

    def _end(self, number: int, half: int) -> None:
        """Averages this rank's share, and reads the others'."""
        share = self.shares[number]
        self._mean(self.here[2 * number + half], share, written=1, programs=-(-share // MEAN["BLOCK"]))
        if self.streams:
            self.averaged.append(self.streams[1].record_event())
        self.barrier(1)  # every rank's share is averaged
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
        """Returns the other ranks in an order in which no two ranks read from the same one at a time."""
        ranks = len(self.memory)
        return [(self.rank + step) % ranks for step in range(1, ranks)]

    def _part(self, number: int, whose: int, of: int) -> Tensor:
        """Returns the share of rank `of` in the piece of rank `whose`."""
        share = self.shares[number]
        return self.memory[whose][self.begins[number] + of * share :][:share]

    def finish(self) -> None:
        self.barrier(0)  # no rank reads or writes here any more: the last piece is complete, the next step may write
        self.averaged.clear()


def share_of(elements: int, ranks: int) -> int:
    """Returns the elements of a piece that one rank averages."""
    return -(-elements // (ranks * SHARED)) * SHARED


def needed(elements: Sequence[int], ranks: int) -> int:
    """Returns the elements of a rank's memory for pieces of these sizes."""
    return ranks * sum(share_of(size, ranks) for size in elements)
