"""DLRM's embedding tables spread over ranks by TorchRec, looked up and updated by FBGEMM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import torch
from jaxtyping import Float, Int32
from torch import Tensor, distributed

from src.batches.clicks import Table
from src.errors import UserError
from src.gpu.triton_helpers import working_dtype
from src.gpu.waiting import Waiting
from src.models.dlrm.embeddings import Embeddings, Rule, Targets
from src.models.dlrm.exchanged import ExchangedTables, can_exchange
from src.models.dlrm.sharded_pieces import Piece, gathered, scattered
from src.models.dlrm.sharded_plan import Plan, agreed, make_plan

if TYPE_CHECKING:
    from src.models.dlrm.sharded_tables import RankTables


class ShardedEmbeddings(Embeddings):
    """`PlainEmbeddings` on many ranks: same state_dict, same numbers.

    Each rank looks up its own samples. Backward sends the gradients to the ranks that hold the rows; `update`, which
    every rank calls after it, applies them. The loss is the mean over a rank's own samples, as for a data parallel
    network. TorchRec's planner says which rank holds what. Where every table fits on some rank, our own kernels and
    exchanges of fixed size do the rest (`ExchangedTables`), otherwise TorchRec and FBGEMM (`RankTables`).

    The tables are no parameters or submodules of this module: an optimiser, DistributedDataParallel and `to` must not
    see them. Until `place` they have no memory.

    Args:
        optimizer, eps: as of `PlainEmbeddings`.
        sharding: data_parallel, table_wise, row_wise or column_wise for some tables, by name; the planner has the rest.
        engine: auto, or torchrec: TorchRec and FBGEMM in any case.

    Raises UserError for an unknown optimizer or engine.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        dim: int,
        optimizer: Rule = "sgd",
        eps: float = 1e-8,
        sharding: Mapping[str, str] | None = None,
        engine: str = "auto",
    ) -> None:
        super().__init__()
        if engine not in ("auto", "torchrec"):
            raise UserError(f"the embeddings' engine={engine} is unknown; give auto or torchrec")
        if optimizer not in ("sgd", "adagrad"):
            raise UserError(f"the embeddings' optimizer={optimizer} is unknown; give sgd or adagrad")
        self.tables, self.dim, self.eps = tuple(tables), dim, eps
        self.optimizer: Rule = optimizer
        self.sharding, self.engine = dict(sharding or {}), engine
        self.plan: Plan | None = None
        self.held: RankTables | ExchangedTables | None = None

    def place(self, device: torch.device, batch_size: int, memory_bytes: float | None = None) -> None:
        """Plans, takes memory and draws the first weights. Every rank calls it, before any other use.

        The weights depend on the seed of rank 0 alone, not on the number of ranks.

        Args:
            batch_size: samples of one rank in a training step.
            memory_bytes: of one rank; the device's own if not given.

        Raises UserError, on every rank, where the tables do not fit, `sharding` names what there is not, or TorchRec is
        not installed.
        """
        world_size = distributed.get_world_size()
        memory_bytes = memory_bytes or memory_of(device, world_size)

        plan_of = partial(
            make_plan, self.tables, self.dim, world_size=world_size, device_type=device.type, batch_size=batch_size,
            memory_bytes=memory_bytes, optimizer=self.optimizer, sharding=self.sharding,
        )  # fmt: skip

        def make() -> tuple[Plan, int]:
            if self.engine == "auto":
                with suppress(UserError):  # a table that fits on no rank has to be cut
                    return plan_of(cut=False), torch.initial_seed()
            return plan_of(), torch.initial_seed()

        try:
            from src.models.dlrm.sharded_tables import RankTables
        except ImportError as error:
            raise UserError(f"sharded embeddings need TorchRec and FBGEMM ({error}): install reprise[dlrm]") from error
        self.plan, seed = agreed(make)
        kind = ExchangedTables if self.engine == "auto" and can_exchange(self.plan) else RankTables
        self.held = kind(self.plan, self.dim, self.optimizer, self.eps, device, seed, self.watched)

    def forward(self, ids: Int32[Tensor, " ids"], batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """Each of this rank's samples' vector of each table, in autocast's dtype or float32. All ranks call it.

        Args:
            ids: table-major, each table's [batch, hotness] flattened; at least 0 and below the table's cardinality.
            batch: number of samples, the same on all ranks.
        """
        return self.begin(ids, batch)()

    def begin(self, ids: Int32[Tensor, " ids"], batch: int) -> Callable[[], Float[Tensor, "{batch} tables {self.dim}"]]:
        kept, dtype = torch.is_grad_enabled(), working_dtype(self.overflow)
        # What is made at the first call and kept must be usable in training, wherever that call was.
        with torch.inference_mode(False), torch.set_grad_enabled(kept), torch.autocast(ids.device.type, enabled=False):
            return self._tables().begin(ids, batch, dtype)

    def targets(self) -> Targets | None:
        return self._tables().targets()

    def can_be_captured(self) -> bool:
        return isinstance(self.held, ExchangedTables)

    def wait_with(self, waiting: Waiting) -> None:
        """Tells `waiting` from now on how long this rank's training waits for others."""
        self._tables().waiting = waiting

    def overflowed(self) -> Float[Tensor, ""]:
        """1 where a pending gradient of any rank is infinite or NaN, otherwise 0, alike on all ranks. All call it."""
        return self._tables().overflowed()

    def watched(self) -> Tensor | None:
        """What becomes 1 where one of this rank's gradients overflows, if the interaction looks at them all."""
        return self.overflow if self.is_watched else None

    @torch.no_grad()
    def update(
        self,
        rate: Float[Tensor, ""],
        found_inf: Float[Tensor, ""] | None = None,
        loss_scale: Float[Tensor, ""] | None = None,
    ) -> None:
        """Applies the pending gradients and forgets them. All ranks call it, with the same numbers.

        Args: as of `PlainEmbeddings.update`. With TorchRec, Adagrad's are read by the host: give it CPU tensors.
        """
        self._tables().update(rate, found_inf, loss_scale)
        self.overflow.zero_()

    def held_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and values of this rank's parts of the tables; nothing before `place`."""
        if self.held is not None:
            for name, number in self._keys():
                yield from ((name, piece.values) for piece in self._pieces(name, number))

    def _tables(self) -> "RankTables | ExchangedTables":
        if self.held is None:
            raise RuntimeError("ShardedEmbeddings are used before `place`")
        return self.held

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Whole tables, on rank 0's CPU; the other ranks help to put them together and get nothing.

        Before `place`, names and shapes on the meta device.
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
        """Takes this rank's parts out of whole tables; all ranks load the same ones, without talking."""
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
        """What a state_dict holds: the names of `PlainEmbeddings`, each with its table's number."""
        kinds = ["weights", "accumulators"] if self.optimizer == "adagrad" else ["weights"]
        return [(f"{kind}.{number}", number) for kind in kinds for number in range(len(self.tables))]

    def _pieces(self, name: str, number: int) -> list[Piece]:
        held = self._tables()
        return held.weights(number) if name.startswith("weights") else held.squares(number)


def memory_of(device: torch.device, world_size: int) -> float:
    """Bytes of the device, or of this rank's share of the host."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total / world_size
