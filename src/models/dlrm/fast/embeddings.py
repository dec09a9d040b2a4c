"""Embedding tables that are looked up and updated by the kernels of `tables`, on one rank or spread over several."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from src.gpu import weight_copies
from src.gpu.triton_helpers import can_take, lacks
from src.models.dlrm.embeddings import Pending, PlainEmbeddings, whole
from src.models.dlrm.fast import tables
from src.models.dlrm.fast.peer_memory import PeerMemoryExchange
from src.models.dlrm.sharded import ShardedEmbeddings
from src.models.dlrm.table_wise import HeldTables, ReplicatedTables, TableWiseTables


class FastEmbeddings(PlainEmbeddings):
    """Updates float32 tables; looks up in those of other dtypes too."""

    def takes_tables(self) -> bool:
        supported = tables.supported(self.dim)
        return len(self.weights) > 0 and can_take("tables", self.weights[0], supported, embedding_dim=self.dim)

    def row_order(self, ids: Int32[Tensor, " ids"], batch: int) -> Any:
        """Sorts the ids on a side stream. Returns None without gradients, and for tables of other dtypes."""
        if not torch.is_grad_enabled() or not self.takes_tables():
            return None
        if self.weights[0].dtype != torch.float32:
            lacks("tables", self.weights[0], f"updates of {self.weights[0].dtype}")
            return None
        return tables.row_order_on_side_stream(self.tables, ids, batch)

    def look_up(
        self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype
    ) -> Float[Tensor, "{batch} tables {self.dim}"]:
        if not self.takes_tables():
            return super().look_up(ids, batch, dtype)
        return tables.look_up(list(self.weights), self.tables, ids, batch, dtype, self.room)

    def tables_to_read(self, dtype: torch.dtype) -> list[Tensor]:
        """Returns the tables, or copies in `dtype`, of which a pass reads half as much: `apply` keeps them equal."""
        weights = list(self.weights)
        if not tables.can_be_copied(weights, dtype):
            return weights

        def make() -> tuple[list[Tensor], list[Tensor]]:
            copies = torch.empty_like(whole(weights), dtype=dtype).split([len(weight) for weight in weights])
            return list(copies), list(copies)

        return weight_copies.cast(weights, dtype, make)

    def apply(
        self, pending: Sequence[Pending], rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None
    ) -> None:
        weights = list(self.weights)
        if any(part.order is None for part in pending):
            super().apply(pending, rate, found_inf, loss_scale)
            weight_copies.renew(weights)
            return
        part = pending[0] if len(pending) == 1 else self.together(pending)
        rule = tables.Rule(
            rate=rate,
            skip=torch.zeros_like(rate) if found_inf is None else found_inf,
            scale=torch.ones_like(rate) if loss_scale is None else loss_scale,
            squares=list(self.accumulators.buffers()),
            eps=self.eps,
        )
        copies = [copy for copy in map(weight_copies.kept().get, [w.data_ptr() for w in weights]) if copy is not None]
        tables.apply(weights, self.tables, part.order, part.gradient, rule, whole(copies) if copies else None)

    def together(self, pending: Sequence[Pending]) -> Pending:
        """Returns several lookups, with their ids in order, as one."""
        for part in pending:
            if part.order.side is not None:  # where their own ids are sorted, for nothing
                part.order.side.join()
        of_tables = zip(*(self.split(part.ids, len(part.gradient)) for part in pending), strict=True)
        ids = torch.cat([torch.cat(of_table) for of_table in of_tables])
        gradient = torch.cat([part.gradient for part in pending])
        return Pending(ids, gradient, tables.row_order(self.tables, ids, len(gradient)))


class FastHeldTables(FastEmbeddings, HeldTables):
    """Those of one rank."""


class FastReplicatedTables(FastEmbeddings, ReplicatedTables):
    """Those that every rank holds."""


class FastShardedEmbeddings(ShardedEmbeddings):
    """Exchanges through peer memory where the ranks' GPUs can."""

    def place(self, device: torch.device, batch_size: int, memory_bytes: float | None = None) -> None:
        super().place(device, batch_size, memory_bytes)
        if isinstance(self.held, TableWiseTables):
            self.held.own.__class__ = self.held.replicas.adding.__class__ = FastHeldTables
            self.held.replicas.__class__ = FastReplicatedTables
            self.held.exchange = PeerMemoryExchange.if_supported(self.held.shards) or self.held.exchange
