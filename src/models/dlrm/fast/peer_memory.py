"""Exchange of vectors and gradients through GPU peer memory, on one machine.

The lookup kernel stores a row in the memory of the GPU that has the sample. The interaction's backward kernel stores a
gradient in the memory of the GPU that holds the table. Neither needs send buffers or a permutation.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from src.models.dlrm.embeddings import GradientSlots
from src.models.dlrm.exchange import Exchange, LookupIds, TableShards
from src.models.dlrm.fast import tables as kernels
from src.parallel.shared_memory import on_every_rank, shared_memory

ALIGNMENT = 16  # elements: the kernels assume that each row begins at a multiple of it


@dataclass(frozen=True)
class Workspace:
    """Shared memory that all ranks write to, for one batch size."""

    vectors: list[Tensor]  # of each rank, [batch, tables, dim]: of its samples
    gradients: list[Tensor]  # of each rank, [most tables of a rank, ranks x batch, dim]: of its tables
    replicated: Tensor  # [replicated tables, batch, dim]: gradients of this rank's replicas, not shared
    barrier: Any  # waits until all ranks have called it; their earlier writes are then visible


@dataclass(frozen=True)
class IdBuffers:
    """Shared memory of every rank for all ranks' ids of its tables, table-major."""

    ids: list[Tensor]  # of each rank
    barrier: Any


class PeerMemoryExchange(Exchange):
    """`Exchange` through memory that the GPUs of one machine share."""

    leaves_replicated = True

    @classmethod
    def if_supported(cls, tables: TableShards) -> "PeerMemoryExchange | None":
        """Returns the exchange if every rank supports it, otherwise None."""
        if tables.device.type != "cuda" or tables.world == 1:
            return None

        def make() -> PeerMemoryExchange:
            exchange = cls(tables)
            exchange.workspace(ALIGNMENT, torch.float16)
            return exchange

        fallback = "embedding vectors are exchanged by all-to-all, not through peer memory"
        return on_every_rank(make, tables.device, fallback, cls.reason_unsupported(tables))

    @staticmethod
    def reason_unsupported(tables: TableShards) -> str | None:
        if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) != tables.world:
            return "the ranks are on several machines"
        if tables.dim % ALIGNMENT:
            return f"it needs an embedding_dim that is a multiple of {ALIGNMENT}"
        return None

    def __init__(self, tables: TableShards) -> None:
        super().__init__(tables)
        self.workspaces: dict[tuple[int, torch.dtype], Workspace] = {}
        self.id_buffers: dict[int, IdBuffers] = {}
        self.latest: Workspace | None = None
        self.gradients_written = False  # whether the interaction writes the latest vectors' gradient itself

    def workspace(self, batch: int, dtype: torch.dtype) -> Workspace:
        """Returns the memory for a batch size. All ranks must ask for the same one at the same time."""
        key = batch, dtype
        if key not in self.workspaces:
            self.workspaces[key] = self._allocate(batch, dtype)
        return self.workspaces[key]

    def _allocate(self, batch: int, dtype: torch.dtype) -> Workspace:
        shape = batch, len(self.tables.plan), self.dim
        back = max(map(len, self.held_by)), self.world * batch, self.dim
        first, second = (torch.Size(size).numel() for size in (shape, back))
        handle = shared_memory(first + second, dtype, self.device)
        return Workspace(
            vectors=[handle.get_buffer(rank, shape, dtype) for rank in range(self.world)],
            gradients=[handle.get_buffer(rank, back, dtype, first) for rank in range(self.world)],
            replicated=torch.empty(len(self.replicated), batch, self.dim, dtype=dtype, device=self.device),
            barrier=handle.barrier,
        )

    def ids(self, ids: Tensor, batch: int) -> Tensor:
        hotness = [[self.tables.plan[number].table.hotness for number in held] for held in self.held_by]
        samples = self.world * batch
        if batch not in self.id_buffers:
            most = samples * max(map(sum, hotness))
            handle = shared_memory(most, torch.int32, self.device)
            self.id_buffers[batch] = IdBuffers(
                [handle.get_buffer(rank, (most,), torch.int32) for rank in range(self.world)], handle.barrier
            )
        buffers, spans, parts, targets = self.id_buffers[batch], self.tables.spans(batch), [], []
        for rank, held in enumerate(self.held_by):
            for index, number in enumerate(held):
                begin = samples * sum(hotness[rank][:index]) + self.rank * batch * hotness[rank][index]
                parts.append(spans[number])
                targets.append(buffers.ids[rank][begin:])
        if parts:
            kernels.send_ids(ids, parts, targets)
        # After this barrier every rank has also read the vectors and gradients of the previous batch.
        buffers.barrier()
        return buffers.ids[self.rank][: samples * sum(hotness[self.rank])]

    def vectors(self, lookup: LookupIds, dtype: torch.dtype) -> Tensor:
        space = self.latest = self.workspace(lookup.batch, dtype)
        held, tables = self.held_by[self.rank], self.tables.own
        if held:
            kernels.look_up_into(space.vectors, held, list(tables.weights), tables.tables, lookup.own)
        if lookup.own_order is not None:
            # After the barrier other ranks may overwrite the ids, so the side stream must have read them.
            torch.cuda.current_stream().wait_event(lookup.own_order.ids_read)
        space.barrier()
        self.gradients_written = False
        return space.vectors[self.rank]

    def add_replicated(self, lookup: LookupIds, vectors: Tensor) -> None:
        if self.replicated:
            replicas = self.tables.replicas
            kernels.look_up_into([vectors], self.replicated, list(replicas.weights), replicas.tables, lookup.replicated)

    def gradient_slots(self) -> GradientSlots:
        assert self.latest is not None
        self.gradients_written = True
        origin = self.latest.vectors[self.rank]
        slots = self._slots(self.latest)
        offsets = [(slot.data_ptr() - origin.data_ptr()) // origin.itemsize for slot in slots]
        return GradientSlots(origin, kernels.cached_tensor(tuple(offsets), torch.int64, self.device))

    def _slots(self, space: Workspace) -> Sequence[Tensor]:
        """Returns each table's slot for the gradients of this rank's samples, [batch, dim]."""
        batch = space.replicated.shape[1]
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        slots = {number: space.replicated[index] for index, number in enumerate(self.replicated)}
        for rank, held in enumerate(self.held_by):
            slots |= {number: space.gradients[rank][index, mine] for index, number in enumerate(held)}
        return [slots[number] for number in range(len(slots))]

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        space = self.latest
        assert space is not None
        if not self.gradients_written:
            for slot, part in zip(self._slots(space), gradient.unbind(1), strict=True):
                slot.copy_(part)
        space.barrier()
        held = space.gradients[self.rank][: len(self.held_by[self.rank])]
        return held.transpose(0, 1), space.replicated.transpose(0, 1)
