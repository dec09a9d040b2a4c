"""DLRM's embedding tables sharded over ranks, by our own kernels or by TorchRec and FBGEMM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.batches.clicks import EmbeddingTable
from src.errors import UserError
from src.gpu.triton_helpers import working_dtype
from src.gpu.waiting import Waiting
from src.models.dlrm.embeddings import Embeddings, GradientSlots, Rule
from src.models.dlrm.pieces import Piece, Start
from src.models.dlrm.sharded_pieces import gathered, scattered
from src.models.dlrm.sharded_plan import Plan, from_rank_0, make_plan, quiet
from src.models.dlrm.table_wise import TableWiseTables, is_table_wise

if TYPE_CHECKING:
    from src.models.dlrm.torchrec_tables import TorchRecTables


class ShardedEmbeddings(Embeddings):
    """`PlainEmbeddings` sharded over ranks: the same state_dict and the same results.

    Each rank passes the ids of its own samples. The backward pass sends gradients to the ranks that hold the rows;
    `update`, called on every rank, applies them. The loss is the mean over a rank's own samples, as in data parallel
    training. TorchRec's planner places the tables. If each table fits on one rank, `TableWiseTables` does the rest with
    our kernels and exchanges of fixed size, otherwise `TorchRecTables` with TorchRec and FBGEMM.

    The tables are not registered as parameters or submodules: an optimiser, DistributedDataParallel and `to` must not
    see them. They have no memory before `place`.

    Args:
        optimizer, eps: as of `PlainEmbeddings`.
        sharding: data_parallel, table_wise, row_wise or column_wise for some tables, by name; the planner decides on
            the others.
        engine: auto, or torchrec to use TorchRec and FBGEMM always.
        start: of `PlainEmbeddings` whose first values these tables get; drawn as theirs is if not given.

    Raises UserError for an unknown optimizer or engine.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        dim: int,
        optimizer: Rule = "sgd",
        eps: float = 1e-8,
        sharding: Mapping[str, str] | None = None,
        engine: str = "auto",
        start: Start | None = None,
    ) -> None:
        super().__init__()
        if engine not in ("auto", "torchrec"):
            raise UserError(f"the embeddings' engine={engine} is unknown; give auto or torchrec")
        if optimizer not in ("sgd", "adagrad"):
            raise UserError(f"the embeddings' optimizer={optimizer} is unknown; give sgd or adagrad")
        self.tables, self.dim, self.eps = tuple(tables), dim, eps
        self.optimizer: Rule = optimizer
        self.sharding, self.engine = dict(sharding or {}), engine
        self.start = start or Start.drawn(torch.get_default_device().type)
        self.plan: Plan | None = None
        self.held: TorchRecTables | TableWiseTables | None = None

    def place(self, device: torch.device, batch_size: int, memory_bytes: float | None = None) -> None:
        """Plans the placement, allocates and initialises the tables. Every rank calls it, before any other use.

        The first values depend on `start` of rank 0 alone: they are those of `PlainEmbeddings` at the same place of the
        same seed, whatever the number of ranks, the sharding and the engine.

        Args:
            batch_size: samples of one rank in a training step.
            memory_bytes: of one rank; the device's if not given.

        Raises UserError on every rank if the tables do not fit, `sharding` names an unknown table or kind, or TorchRec
        is not installed.
        """
        world_size = distributed.get_world_size()
        memory_bytes = memory_bytes or memory_of(device, world_size)

        plan_of = partial(
            make_plan, self.tables, self.dim, world_size=world_size, device_type=device.type, batch_size=batch_size,
            memory_bytes=memory_bytes, optimizer=self.optimizer, sharding=self.sharding,
        )  # fmt: skip

        def make() -> tuple[Plan, Start]:
            if self.engine == "auto":
                with suppress(UserError):  # tables that do not fit whole have to be cut
                    return plan_of(cut=False), self.start
            return plan_of(), self.start

        try:
            with quiet():  # FBGEMM logs each library that it loads
                from src.models.dlrm.torchrec_tables import TorchRecTables
        except ImportError as error:
            raise UserError(f"sharded embeddings need TorchRec and FBGEMM ({error}): install reprise[dlrm]") from error
        self.plan, start = from_rank_0(make)
        kind = TableWiseTables if self.engine == "auto" and is_table_wise(self.plan) else TorchRecTables
        self.held = kind(self.plan, self.dim, self.optimizer, self.eps, device, start, self.kernel_overflow)

    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """Returns the vectors of this rank's samples, in autocast's dtype or float32. All ranks call it.

        Args:
            ids: table-major, each table's [batch, hotness] flattened; at least 0 and below the table's cardinality.
            batch: number of samples, the same on all ranks.
        """
        return self.start_lookup(ids, batch)()

    def start_lookup(
        self, ids: Int32[Tensor, " ids"], batch: int
    ) -> Callable[[], Float[Tensor, "{batch} tables {self.dim}"]]:
        grad, dtype = torch.is_grad_enabled(), working_dtype(self.overflow)
        # Buffers cached by a first call in inference mode must be usable in training.
        with torch.inference_mode(False), torch.set_grad_enabled(grad), torch.autocast(ids.device.type, enabled=False):
            return self._tables().start_lookup(ids, batch, dtype)

    def gradient_slots(self) -> GradientSlots | None:
        return self._tables().gradient_slots()

    def can_be_captured(self) -> bool:
        return isinstance(self.held, TableWiseTables)

    def wait_with(self, waiting: Waiting) -> None:
        """Records in `waiting` how long this rank's training waits for other ranks."""
        self._tables().waiting = waiting

    def overflowed(self) -> Float[Tensor, ""]:
        """Returns 1 if a pending gradient of any rank is infinite or NaN, otherwise 0. All ranks call it."""
        return self._tables().overflowed()

    def kernel_overflow(self) -> Tensor | None:
        """Returns the flag that the interaction's kernel sets where a gradient overflows; None if it checks none."""
        return self.overflow if self.kernel_sets_overflow else None

    @torch.no_grad()
    def update(
        self,
        rate: Float[Tensor, ""],
        found_inf: Float[Tensor, ""] | None = None,
        loss_scale: Float[Tensor, ""] | None = None,
    ) -> None:
        """Applies the pending gradients and clears them. All ranks call it, with the same arguments.

        Args: as of `PlainEmbeddings.update`. With TorchRec and Adagrad the host reads them: give it CPU tensors.
        """
        self._tables().update(rate, found_inf, loss_scale)
        self.overflow.zero_()
        self.kernel_sets_overflow = False

    def held_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields names and values of this rank's parts of the tables; nothing before `place`."""
        if self.held is not None:
            for name, number in self._keys():
                yield from ((name, piece.values) for piece in self._pieces(name, number))

    def _tables(self) -> "TorchRecTables | TableWiseTables":
        if self.held is None:
            raise RuntimeError("ShardedEmbeddings are used before `place`; call it first, on every rank")
        return self.held

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Gathers whole tables on rank 0's CPU; the other ranks send their parts and save nothing.

        Before `place` it saves empty tensors on the meta device.
        """
        for name, number in self._keys():
            shape = self.tables[number].cardinality, self.dim
            if self.held is None or self.plan is None:
                destination[prefix + name] = torch.empty(shape, device="meta")
                continue
            placement = self.plan[number]
            shards = placement.shards(self.dim)[: 1 if placement.sharding == "data_parallel" else None]
            whole = gathered(shards, self._pieces(name, number), shape, self.held.device)
            if whole is not None:
                destination[prefix + name] = whole

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Copies this rank's parts out of whole tables, which every rank reads; no communication."""
        keys = {prefix + name: (name, number) for name, number in self._keys()}
        unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in keys and strict]
        for key, (name, number) in keys.items():
            shape = self.tables[number].cardinality, self.dim
            if key not in state_dict:
                missing_keys.append(key)
            elif tuple(state_dict[key].shape) != shape:
                error_msgs.append(f"{key} is {tuple(state_dict[key].shape)} in the checkpoint and {shape} here")
            else:
                scattered(state_dict[key], self._pieces(name, number))

    def _keys(self) -> list[tuple[str, int]]:
        """Returns the state_dict keys, which are those of `PlainEmbeddings`, each with its table's number."""
        kinds = ["weights", "accumulators"] if self.optimizer == "adagrad" else ["weights"]
        return [(f"{kind}.{number}", number) for kind in kinds for number in range(len(self.tables))]

    def _pieces(self, name: str, number: int) -> list[Piece]:
        held = self._tables()
        return held.weights(number) if name.startswith("weights") else held.squares(number)


def memory_of(device: torch.device, world_size: int) -> float:
    """Returns the bytes of the GPU, or of this rank's share of the host."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total / world_size
