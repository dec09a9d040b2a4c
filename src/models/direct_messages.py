"""Messages averaged through memory that the GPUs of one machine share, by their copy engines.

NCCL's kernels hold multiprocessors while they wait and send, and products that count on all of them take another round.
"""

import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, distributed

from src.models.messages import Messages
from src.models.shared_memory import on_every_rank, shared_memory

ALIGNED = 32  # numbers: what a rank's share of a message is a multiple of


class DirectMessages(Messages):
    """`Messages` for ranks that reach each other's memory.

    Each rank fetches its share of a message from all others, averages it, and fetches the others' means of theirs: one
    rank alone averages a share, so all ranks have the same bits, and so has another run.

    Args:
        memory: of each rank, 0 at first, of at least `needed(numbers, ranks)` numbers.
        rank: whose memory is this process's own.
        barrier: waits on the current stream until every rank is there, and sees what they have written before.
        numbers: of each message.
    """

    def __init__(
        self, memory: Sequence[Tensor], rank: int, barrier: Callable[[], None], numbers: Sequence[int]
    ) -> None:
        self.memory, self.rank, self.barrier = memory, rank, barrier
        self.shares = [share_of(each, len(memory)) for each in numbers]
        self.begins = [len(memory) * sum(self.shares[:number]) for number in range(len(numbers))]
        self.fetched = memory[rank].new_empty(len(memory) - 1, max(self.shares))
        self.stream = torch.cuda.Stream(memory[rank].device) if memory[rank].is_cuda else None

    @classmethod
    def of(cls, numbers: Sequence[int], dtype: torch.dtype, device: torch.device) -> "DirectMessages | None":
        """They, where every rank can have them: on one machine whose GPUs reach each other's memory. All ranks ask."""
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if device.type != "cuda" or int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != world:
            return None

        def made() -> DirectMessages:
            total = needed(numbers, world)
            handle = shared_memory(total, dtype, device)
            memory = [handle.get_buffer(each, (total,), dtype) for each in range(world)]
            memory[rank].zero_()
            return cls(memory, rank, handle.barrier, numbers)

        return on_every_rank(made, device, "gradients travel through NCCL, not straight out of the other GPUs' memory")

    def empty(self, number: int, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self.memory[self.rank][self.begins[number] :][:numbers]

    def average(self, number: int, message: Tensor) -> Callable[[], None]:
        if self.stream is None:
            self._average(number)
            return lambda: None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._average(number)
            done = self.stream.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)

    def _average(self, number: int) -> None:
        begin, share, ranks = self.begins[number], self.shares[number], len(self.memory)

        def part(whose: int, of: int) -> Tensor:
            return self.memory[whose][begin + of * share :][:share]

        others = [(self.rank + step) % ranks for step in range(1, ranks)]  # no two fetch from the same one at a time
        mine = part(self.rank, self.rank)
        self.barrier()  # everybody's message is written
        for place, other in enumerate(others):
            self.fetched[place, :share].copy_(part(other, self.rank))
        for place in range(len(others)):
            mine.lerp_(self.fetched[place, :share], 1 / (place + 2))  # the mean so far: no pass more for a division
        self.barrier()  # everybody's share is averaged
        for other in others:
            part(self.rank, other).copy_(part(other, other))

    def finish(self) -> None:
        self.barrier()  # nobody fetches from here any more: the next step may write


def share_of(numbers: int, ranks: int) -> int:
    """Numbers of a message that one rank averages."""
    return -(-numbers // (ranks * ALIGNED)) * ALIGNED


def needed(numbers: Sequence[int], ranks: int) -> int:
    """Numbers that a rank's memory for messages of such sizes has."""
    return ranks * sum(share_of(each, ranks) for each in numbers)
