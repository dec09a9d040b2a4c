"""Placement of embedding tables on ranks: plans as plain data, from TorchRec's planner on rank 0.

Only `make_plan` imports TorchRec.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import distributed

from src.batches.clicks import EmbeddingTable
from src.errors import UserError
from src.models.dlrm.embeddings import Rule

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

Sharding = Literal["data_parallel", "table_wise", "row_wise", "column_wise"]
SHARDINGS: tuple[str, ...] = get_args(Sharding)
RESERVED = 0.15  # of a rank's memory: for MLPs, activations and fragmentation
MAX_REPLICATED = 1 / 6  # rows over a rank's samples: up to here an all-reduce of all rows moves less than all-to-all
MIN_COLUMNS = 32  # of a shard: narrower rows waste memory transactions
GIB = 2**30


class Shard(NamedTuple):
    """A rectangle of a table, on one rank."""

    rank: int
    rows: slice
    columns: slice


class Placement(NamedTuple):
    """The sharding of one table.

    `ranks`: one for table_wise; for column_wise the rank of each of equally wide shards, from left to right, where a
    rank may occur twice; all ranks for row_wise (equal shares from top to bottom, the last ones may be short) and for
    data_parallel (each holds the whole table).
    """

    table: EmbeddingTable
    sharding: str
    ranks: tuple[int, ...]

    def shards(self, dim: int) -> list[Shard]:
        """Returns all shards; for a data_parallel table one per rank."""
        rows, parts = self.table.cardinality, len(self.ranks)
        if self.sharding == "row_wise":
            share = -(-rows // parts)
            cuts = [min(share * part, rows) for part in range(parts + 1)]
            return [Shard(rank, slice(*cuts[i : i + 2]), slice(0, dim)) for i, rank in enumerate(self.ranks)]
        if self.sharding == "column_wise":
            width = dim // parts
            return [Shard(rank, slice(0, rows), slice(i * width, (i + 1) * width)) for i, rank in enumerate(self.ranks)]
        return [Shard(rank, slice(0, rows), slice(0, dim)) for rank in self.ranks]


T = TypeVar("T")
Plan = tuple[Placement, ...]  # in the order of the tables


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the log messages of TorchRec and FBGEMM on default options and loaded libraries, and FutureWarnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.disable(before)


@quiet()
def make_plan(
    tables: Sequence[EmbeddingTable],
    dim: int,
    *,
    world_size: int,
    device_type: str,
    memory_bytes: float,
    batch_size: int,
    optimizer: Rule = "sgd",
    sharding: Mapping[str, str] | None = None,
    cut: bool = True,
) -> Plan:
    """Returns the plan of TorchRec's planner for `world_size` equal ranks; small tables are data parallel.

    Processes may get different plans, since the planner iterates over sets of strings: see `from_rank_0`.

    Args:
        memory_bytes: of each rank; the planner leaves the fraction RESERVED free.
        batch_size: samples of one rank in a step.
        sharding: the user's choice for some tables, by name.
        cut: whether the planner may cut tables that are not in `sharding`.

    Raises UserError if the tables do not fit, or for an unknown table or sharding.
    """
    from torchrec.distributed.comm import get_local_size
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.stats import NoopEmbeddingStats
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
    from torchrec.distributed.planner.types import PlannerError
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    class Sharder(EmbeddingBagCollectionSharder):
        def sharding_types(self, compute_device_type: str) -> list[str]:
            return list(SHARDINGS)  # TorchRec's list lacks row_wise on a CPU, where it works

    chosen = checked_sharding(sharding or {}, tables)
    collection = bags(tables, dim)
    if optimizer == "adagrad":  # the planner then counts the squares
        apply_optimizer_in_backward(torch.optim.Adagrad, collection.parameters(), {"lr": 1.0})
    kinds = {table.name: allowed_shardings(table, world_size, batch_size, cut) for table in tables}
    kinds |= {name: [kind] for name, kind in chosen.items()}
    allowed = {
        bag_name(number): ParameterConstraints(
            sharding_types=kinds[table.name],
            compute_kernels=["fused", "dense"],  # dense is for data_parallel only
            pooling_factors=[float(table.hotness)],
            min_partition=min(dim, max(MIN_COLUMNS, dim // world_size)),
        )
        for number, table in enumerate(tables)
    }
    memory = {"hbm_cap" if device_type == "cuda" else "ddr_cap": int(memory_bytes)}
    topology = Topology(world_size, device_type, local_world_size=get_local_size(world_size), **memory)  # type: ignore[arg-type]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        constraints=allowed,
        storage_reservation=FixedPercentageStorageReservation(RESERVED),
        stats=NoopEmbeddingStats(),
    )
    try:
        planned: Any = planner.plan(collection, [Sharder()]).plan[""]  # type: ignore[list-item]
    except PlannerError as error:
        raise UserError(does_not_fit(tables, dim, world_size, memory_bytes, batch_size, optimizer, chosen)) from error
    placements = []
    for number, table in enumerate(tables):
        bag_plan = planned[bag_name(number)]
        whole = bag_plan.sharding_type == "column_wise" and len(bag_plan.ranks) == 1
        placements.append(Placement(table, "table_wise" if whole else bag_plan.sharding_type, tuple(bag_plan.ranks)))
    return tuple(placements)


def from_rank_0(make: Callable[[], T]) -> T:
    """Returns what `make` returns on rank 0, on every rank. If it raises there, all ranks raise."""
    outcome: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            outcome = [make()]
        except Exception as error:  # the other ranks wait for the broadcast
            outcome = [error.with_traceback(None)]
    distributed.broadcast_object_list(outcome, 0)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def allowed_shardings(table: EmbeddingTable, world_size: int, batch_size: int, cut: bool) -> list[str]:
    """Returns the shardings that the planner may choose: data_parallel for small tables on several ranks."""
    if world_size > 1 and table.cardinality <= MAX_REPLICATED * batch_size:
        return ["data_parallel"]
    return ["table_wise", "row_wise", "column_wise"] if cut else ["table_wise"]


def checked_sharding(sharding: Mapping[str, str], tables: Sequence[EmbeddingTable]) -> dict[str, str]:
    """Returns the user's choice. Raises UserError for an unknown table or sharding."""
    names = [table.name for table in tables]
    for name, kind in sharding.items():
        if name not in names:
            raise UserError(f"sharding.{name}: there is no such table; the tables are {names[0]} to {names[-1]}")
        if kind not in SHARDINGS:
            raise UserError(f"sharding.{name}={kind} is unknown; give one of {', '.join(SHARDINGS)}")
    return dict(sharding)


def does_not_fit(
    tables: Sequence[EmbeddingTable],
    dim: int,
    world_size: int,
    memory_bytes: float,
    batch_size: int,
    optimizer: Rule,
    chosen: Mapping[str, str],
) -> str:
    """Returns the error message for tables that do not fit, with the sizes."""
    row_bytes = dim * 4 * (2 if optimizer == "adagrad" else 1)
    largest = max(tables, key=lambda table: table.cardinality)
    total = sum(table.cardinality for table in tables)
    return (
        f"the embedding tables do not fit: {len(tables)} tables take {total * row_bytes / GIB:.3g} GiB with {optimizer}"
        f" (the largest, {largest.name}, {largest.cardinality * row_bytes / GIB:.3g} GiB) beside {batch_size:,} samples"
        f" a rank; there are {world_size} rank(s) of {memory_bytes / GIB:.3g} GiB, {1 - RESERVED:.0%} of it for tables"
        f"{f', and sharding={dict(chosen)}' if chosen else ''}; take more ranks, a smaller batch, fewer rows (a higher"
        f" frequency limit) or fewer dimensions"
    )


def bag_name(number: int) -> str:
    """Returns TorchRec's name of a table and its feature; they become module names, so they hold no dots."""
    return f"table_{number}"


def bags(tables: Sequence[EmbeddingTable], dim: int) -> "EmbeddingBagCollection":
    """Returns the tables as TorchRec's unsharded module, on the meta device."""
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(
            name=bag_name(number),
            feature_names=[bag_name(number)],
            num_embeddings=table.cardinality,
            embedding_dim=dim,
        )
        for number, table in enumerate(tables)
    ]
    return EmbeddingBagCollection(configs, device=torch.device("meta"))
