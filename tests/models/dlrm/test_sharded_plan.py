"""Sharding plans: shards cover each table once, small tables are replicated, and memory limits hold."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from src.batches.clicks import EmbeddingTable
from src.errors import UserError
from src.models.dlrm.sharded_plan import GIB, MAX_REPLICATED, RESERVED, Placement, Plan, make_plan
from tests.support.random_clicks import PUBLISHED

DIM = 128
TABLES = [EmbeddingTable(f"cat_{i}.bin", rows) for i, rows in enumerate(PUBLISHED)]


def planned(world_size: int, memory_gib: float, **options: Any) -> Plan:
    settings = {"device_type": "cuda", "batch_size": 65536 // world_size, **options}
    return make_plan(TABLES, DIM, world_size=world_size, memory_bytes=memory_gib * GIB, **settings)


def bytes_per_rank(plan: Plan, world_size: int) -> list[int]:
    sizes = [0] * world_size
    for placement in plan:
        for shard in placement.shards(DIM):
            sizes[shard.rank] += 4 * (shard.rows.stop - shard.rows.start) * (shard.columns.stop - shard.columns.start)
    return sizes


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_published_tables_are_balanced_and_small_ones_replicated(world_size: int) -> None:
    plan = planned(world_size, 131)
    assert [placement.table for placement in plan] == TABLES
    largest = 65536 / world_size * MAX_REPLICATED if world_size > 1 else 0
    for placement in plan:
        assert (placement.sharding == "data_parallel") == (placement.table.cardinality <= largest)
    sizes = bytes_per_rank(plan, world_size)
    assert max(sizes) < 2.5 * sum(PUBLISHED) * DIM * 4 / world_size


@pytest.mark.parametrize(
    ("sharding", "ranks"),
    [("row_wise", (0, 1, 2)), ("row_wise", (0, 1, 2, 3, 4, 5)), ("column_wise", (2, 0)), ("table_wise", (1,))],
)
def test_shards_cover_a_table_once(sharding: str, ranks: tuple[int, ...]) -> None:
    covered = torch.zeros(7, 8)
    shards = Placement(EmbeddingTable("cat", 7), sharding, ranks).shards(8)
    assert [shard.rank for shard in shards] == list(ranks)
    for shard in shards:
        covered[shard.rows, shard.columns] += 1
    assert torch.equal(covered, torch.ones(7, 8))


def test_the_user_may_choose_shardings() -> None:
    chosen = {"cat_0.bin": "row_wise", "cat_19.bin": "column_wise", "cat_5.bin": "table_wise"}
    plan = planned(4, 131, sharding=chosen)
    assert {p.table.name: p.sharding for p in plan if p.table.name in chosen} == chosen
    assert plan[0].ranks == (0, 1, 2, 3) and len(plan[19].ranks) == 4 and len(plan[5].ranks) == 1


def test_plans_fit_the_memory_with_the_optimizers_state() -> None:
    plan = planned(2, 14, optimizer="sgd")
    assert max(bytes_per_rank(plan, 2)) < (1 - RESERVED) * 14 * GIB
    planned(2, 28, optimizer="adagrad")
    with pytest.raises(UserError) as caught:
        planned(2, 14, optimizer="adagrad", sharding={"cat_0.bin": "row_wise"})
    message = str(caught.value)
    sizes = ("26 tables take 31.2 GiB with adagrad", "cat_19.bin, 7.79 GiB", "32,768 samples", "2 rank(s) of 14 GiB")
    for words in (*sizes, "sharding={'cat_0.bin': 'row_wise'}", "take more ranks"):
        assert words in message
    assert "\n" not in message


@pytest.mark.slow
def test_importing_sharded_imports_no_torchrec() -> None:
    code = "import sys, src.models.dlrm.sharded; print([m for m in sys.modules if 'torchrec' in m or 'fbgemm' in m])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
