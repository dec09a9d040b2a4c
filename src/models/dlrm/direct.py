"""Vectors and gradients written where they are needed: on one machine the GPUs reach each other's memory.

The kernel that looks a row up stores it in the memory of the GPU that has the sample, and the interaction's backward
kernel stores a gradient in that of the GPU that holds the table. Nothing is packed, sent and put in order.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from src.models.dlrm.embeddings import Targets
from src.models.dlrm.exchange import Asked, Route, Shares
from src.models.dlrm.kernels import dispatch
from src.parallel.shared_memory import on_every_rank, shared_memory

UNIT = 16  # numbers: what the kernels may take for granted of where a row begins


@dataclass(frozen=True)
class Workspace:
    """Memory of every rank that all ranks write to, for one size of batch."""

    vectors: list[Tensor]  # of each rank, [batch, tables, dim]: of its samples
    gradients: list[Tensor]  # of each rank, [most tables of a rank, ranks x batch, dim]: of its tables
    copied: Tensor  # [copied tables, batch, dim]: this rank's alone
    barrier: Any  # waits until all ranks have come here, and sees what they have written before


@dataclass(frozen=True)
class Inbox:
    """Memory of every rank for the ids that it is asked for, by all ranks, table-major."""

    ids: list[Tensor]  # of each rank
    barrier: Any


class DirectRoute(Route):
    """`Route` over memory that the GPUs of one machine share."""

    @classmethod
    def of(cls, tables: Shares) -> "DirectRoute | None":
        """The route, where every rank can have it."""
        if tables.device.type != "cuda" or tables.world == 1:
            return None

        def made() -> DirectRoute:
            route = cls(tables)
            route.workspace(UNIT, torch.float16)
            return route

        instead = "vectors travel in messages, not straight into the other GPUs' memory"
        return on_every_rank(made, tables.device, instead, cls.missing(tables))

    @staticmethod
    def missing(tables: Shares) -> str | None:
        if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != tables.world:
            return "the ranks are on several machines"
        if dispatch.kernels() is None or tables.dim % UNIT:
            return f"it needs Triton, and vectors of a multiple of {UNIT} numbers"
        return None

    def __init__(self, tables: Shares) -> None:
        super().__init__(tables)
        self.workspaces: dict[tuple[int, torch.dtype], Workspace] = {}
        self.inboxes: dict[int, Inbox] = {}
        self.newest: Workspace | None = None
        self.is_delivered = False  # the newest vectors' gradient, by the interaction

    def workspace(self, batch: int, dtype: torch.dtype) -> Workspace:
        """The memory for a batch; all ranks have to ask for the same one at the same time."""
        key = batch, dtype
        if key not in self.workspaces:
            self.workspaces[key] = self._shared(batch, dtype)
        return self.workspaces[key]

    def _shared(self, batch: int, dtype: torch.dtype) -> Workspace:
        shape = batch, len(self.tables.plan), self.dim
        back = max(map(len, self.held_by)), self.world * batch, self.dim
        first, second = (torch.Size(size).numel() for size in (shape, back))
        handle = shared_memory(first + second, dtype, self.device)
        return Workspace(
            vectors=[handle.get_buffer(rank, shape, dtype) for rank in range(self.world)],
            gradients=[handle.get_buffer(rank, back, dtype, first) for rank in range(self.world)],
            copied=torch.empty(len(self.copied), batch, self.dim, dtype=dtype, device=self.device),
            barrier=handle.barrier,
        )

    def ids(self, ids: Tensor, batch: int) -> Tensor:
        hotness = [[self.tables.plan[number].table.hotness for number in held] for held in self.held_by]
        each = self.world * batch  # samples
        if batch not in self.inboxes:
            most = each * max(map(sum, hotness))
            handle = shared_memory(most, torch.int32, self.device)
            self.inboxes[batch] = Inbox(
                [handle.get_buffer(rank, (most,), torch.int32) for rank in range(self.world)], handle.barrier
            )
        inbox, spans, parts, targets = self.inboxes[batch], self.tables.spans(batch), [], []
        for rank, held in enumerate(self.held_by):
            for place, number in enumerate(held):
                begin = each * sum(hotness[rank][:place]) + self.rank * batch * hotness[rank][place]
                parts.append(spans[number])
                targets.append(inbox.ids[rank][begin:])
        if parts:
            self.kernels.send_ids(ids, parts, targets)
        # From here on every rank has also used up the vectors and gradients that the last batch left in its memory.
        inbox.barrier()
        return inbox.ids[self.rank][: each * sum(hotness[self.rank])]

    def vectors(self, asked: Asked, dtype: torch.dtype) -> Tensor:
        space = self.newest = self.workspace(asked.batch, dtype)
        held, tables = self.held_by[self.rank], self.tables.own
        if held:
            self.kernels.look_up_into(space.vectors, held, list(tables.weights), tables.tables, asked.own)
        if asked.own_order is not None:
            # The next ids may come when all vectors are there: nobody may be reading these any more.
            torch.cuda.current_stream().wait_event(asked.own_order.ids_read)
        space.barrier()
        self.is_delivered = False
        return space.vectors[self.rank]

    def add_copied(self, asked: Asked, vectors: Tensor) -> None:
        if self.copied:
            copies = self.tables.copies
            self.kernels.look_up_into([vectors], self.copied, list(copies.weights), copies.tables, asked.copied)

    def targets(self) -> Targets:
        assert self.newest is not None
        self.is_delivered = True
        origin = self.newest.vectors[self.rank]
        offsets = [(part.data_ptr() - origin.data_ptr()) // origin.itemsize for part in self._places(self.newest)]
        return Targets(origin, self.kernels.numbers_on(tuple(offsets), torch.int64, self.device))

    @property
    def kernels(self) -> Any:
        fused = dispatch.kernels()
        assert fused is not None
        return fused.tables

    def _places(self, space: Workspace) -> Sequence[Tensor]:
        """Where the gradients of this rank's samples are wanted, [batch, dim] of each table."""
        batch = space.copied.shape[1]
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        found = {number: space.copied[place] for place, number in enumerate(self.copied)}
        for rank, held in enumerate(self.held_by):
            found |= {number: space.gradients[rank][place, mine] for place, number in enumerate(held)}
        return [found[number] for number in range(len(found))]

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        space = self.newest
        assert space is not None
        if not self.is_delivered:
            for place, part in zip(self._places(space), gradient.unbind(1), strict=True):
                place.copy_(part)
        space.barrier()
        own = space.gradients[self.rank][: len(self.held_by[self.rank])]
        return own.transpose(0, 1), space.copied.transpose(0, 1)
