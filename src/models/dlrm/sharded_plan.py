"""Where embedding tables go: a plan as plain data, made by TorchRec's planner on rank 0 and agreed on by all ranks.

TorchRec is imported when a plan is asked for, and by nothing that only reads one.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import distributed

from src.batches.clicks import Table
from src.errors import UserError
from src.models.dlrm.embeddings import Rule

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

Sharding = Literal["data_parallel", "table_wise", "row_wise", "column_wise"]
SHARDINGS: tuple[str, ...] = get_args(Sharding)
KEPT_FREE = 0.15  # of a rank's memory: the MLPs, activations, and what the allocator cannot use
TINY = 1 / 6  # of a rank's samples: exchanging gradients of so few rows is less than exchanging vectors of the samples
NARROWEST = 32  # columns of a shard: narrower rows waste the memory's transactions
GIB = 2**30


class Shard(NamedTuple):
    """A rectangle of a table, on one rank."""

    rank: int
    rows: slice
    columns: slice


class Placement(NamedTuple):
    """Where one table goes.

    `ranks`: one for table_wise; for column_wise the rank of each of equally wide shards, from left to right, in which
    a rank may come twice; all ranks for row_wise (equal shares from top to bottom, the last ones may be short) and
    for data_parallel (each has the whole table).
    """

    table: Table
    sharding: str
    ranks: tuple[int, ...]

    def shards(self, dim: int) -> list[Shard]:
        """All of them; of a data_parallel table each rank's copy."""
        rows, parts = self.table.cardinality, len(self.ranks)
        if self.sharding == "row_wise":
            share = -(-rows // parts)
            cuts = [min(share * part, rows) for part in range(parts + 1)]
            return [Shard(rank, slice(*cuts[i : i + 2]), slice(0, dim)) for i, rank in enumerate(self.ranks)]
        if self.sharding == "column_wise":
            width = dim // parts
            return [Shard(rank, slice(0, rows), slice(i * width, (i + 1) * width)) for i, rank in enumerate(self.ranks)]
        return [Shard(rank, slice(0, rows), slice(0, dim)) for rank in self.ranks]


Made = TypeVar("Made")
Plan = tuple[Placement, ...]  # in the order of the tables


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps TorchRec's notes on options that nobody gave, and on what will be renamed, out of a run's print-out."""
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
    tables: Sequence[Table],
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
    """What TorchRec's planner finds best for `world_size` equal ranks; tiny tables are data parallel.

    Not the same in every process (the planner walks over sets of strings): see `agreed`.

    Args:
        memory_bytes: of each rank, of which KEPT_FREE are not planned with.
        batch_size: samples of one rank in a step.
        sharding: what the user wants for some tables, by name.
        cut: whether tables may be cut into parts, where the user wants nothing else.

    Raises UserError where the tables do not fit, or for a table or sharding that there is not.
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
            return list(SHARDINGS)  # TorchRec's own leaves row_wise out on a CPU, where it works

    chosen = checked(sharding or {}, tables)
    collection = bags(tables, dim)
    if optimizer == "adagrad":  # so that the planner leaves room for the squares
        apply_optimizer_in_backward(torch.optim.Adagrad, collection.parameters(), {"lr": 1.0})
    kinds = {table.name: offered(table, world_size, batch_size, cut) for table in tables}
    kinds |= {name: [kind] for name, kind in chosen.items()}
    allowed = {
        bag_name(number): ParameterConstraints(
            sharding_types=kinds[table.name],
            compute_kernels=["fused", "dense"],  # dense is data_parallel's alone
            pooling_factors=[float(table.hotness)],
            min_partition=min(dim, max(NARROWEST, dim // world_size)),
        )
        for number, table in enumerate(tables)
    }
    memory = {"hbm_cap" if device_type == "cuda" else "ddr_cap": int(memory_bytes)}
    topology = Topology(world_size, device_type, local_world_size=get_local_size(world_size), **memory)  # type: ignore[arg-type]
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        constraints=allowed,
        storage_reservation=FixedPercentageStorageReservation(KEPT_FREE),
        stats=NoopEmbeddingStats(),
    )
    try:
        found: Any = planner.plan(collection, [Sharder()]).plan[""]  # type: ignore[list-item]
    except PlannerError as error:
        raise UserError(does_not_fit(tables, dim, world_size, memory_bytes, batch_size, optimizer, chosen)) from error
    placements = []
    for number, table in enumerate(tables):
        own = found[bag_name(number)]
        whole = own.sharding_type == "column_wise" and len(own.ranks) == 1
        placements.append(Placement(table, "table_wise" if whole else own.sharding_type, tuple(own.ranks)))
    return tuple(placements)


def agreed(make: Callable[[], Made]) -> Made:
    """What rank 0 makes, on every rank. What rank 0 raises, all ranks raise."""
    outcome: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            outcome = [make()]
        except Exception as error:  # the others wait for a word, whatever it is
            outcome = [error.with_traceback(None)]
    distributed.broadcast_object_list(outcome, 0)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def offered(table: Table, world_size: int, batch_size: int, cut: bool) -> list[str]:
    """What the planner may choose from: data_parallel for tiny tables, where there are ranks to exchange with."""
    if world_size > 1 and table.cardinality <= TINY * batch_size:
        return ["data_parallel"]
    return ["table_wise", "row_wise", "column_wise"] if cut else ["table_wise"]


def checked(sharding: Mapping[str, str], tables: Sequence[Table]) -> dict[str, str]:
    """The user's choice. Raises UserError for a table or a sharding that there is not."""
    names = [table.name for table in tables]
    for name, kind in sharding.items():
        if name not in names:
            raise UserError(f"sharding.{name}: there is no such table; the tables are {names[0]} to {names[-1]}")
        if kind not in SHARDINGS:
            raise UserError(f"sharding.{name}={kind} is unknown; give one of {', '.join(SHARDINGS)}")
    return dict(sharding)


def does_not_fit(
    tables: Sequence[Table],
    dim: int,
    world_size: int,
    memory_bytes: float,
    batch_size: int,
    optimizer: Rule,
    chosen: Mapping[str, str],
) -> str:
    """The planner's reason in one line, with the sizes."""
    row_bytes = dim * 4 * (2 if optimizer == "adagrad" else 1)
    largest = max(tables, key=lambda table: table.cardinality)
    total = sum(table.cardinality for table in tables)
    return (
        f"the embedding tables do not fit: {len(tables)} tables take {total * row_bytes / GIB:.3g} GiB with {optimizer}"
        f" (the largest, {largest.name}, {largest.cardinality * row_bytes / GIB:.3g} GiB) beside {batch_size:,} samples"
        f" a rank; there are {world_size} rank(s) of {memory_bytes / GIB:.3g} GiB, {1 - KEPT_FREE:.0%} of it for this"
        f"{f', and sharding={dict(chosen)}' if chosen else ''}; take more ranks, a smaller batch, fewer rows (a higher"
        f" frequency limit) or fewer dimensions"
    )


def bag_name(number: int) -> str:
    """What TorchRec calls a table and its feature: it makes module names of them, which hold no dots."""
    return f"table_{number}"


def bags(tables: Sequence[Table], dim: int) -> "EmbeddingBagCollection":
    """The tables as TorchRec wants to see them before they are sharded: without memory."""
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
