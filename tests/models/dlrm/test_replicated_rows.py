"""On several ranks the interaction reads the rows of replicated tables itself, where the exchange leaves them to it."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.nn.functional import binary_cross_entropy_with_logits

from src.batches.clicks import Clicks, EmbeddingTable
from src.gpu import triton_helpers
from src.models.dlrm.exchange import AllToAllExchange, LookupIds
from src.models.dlrm.fast import accelerate, interaction
from src.models.dlrm.fast.embeddings import FastShardedEmbeddings
from src.models.dlrm.network import DLRM
from src.models.dlrm.table_wise import TableWiseTables
from tests.support.gloo_ranks import Ranks

pytestmark = pytest.mark.slow

TABLES = tuple(EmbeddingTable(f"cat_{number}.bin", rows) for number, rows in enumerate((3, 37, 50, 5)))
SHARDING = {table.name: kind for table, kind in zip(TABLES, ("data_parallel", "table_wise") * 2, strict=True)}
DIM, BATCH, STEPS = 16, 6, 3


class Leaving(AllToAllExchange):
    """Leaves NaN in the place of the replicated tables' vectors."""

    leaves_replicated = True

    def vectors(self, lookup: LookupIds, dtype: torch.dtype) -> Tensor:
        vectors = super().vectors(lookup, dtype)
        vectors[:, self.replicated] = torch.nan
        return vectors

    def add_replicated(self, lookup: LookupIds, vectors: Tensor) -> None:
        assert not interaction.GATHERED
        vectors[:, self.replicated] = self.tables.replicas.look_up(lookup.replicated, lookup.batch, vectors.dtype)


def trained(exchange: str, gathered: bool = True) -> dict[str, Any]:
    """Trains a few steps; returns logits, losses and the tables, which are whole on rank 0."""
    triton_helpers.devices, interaction.GATHERED = {"cpu"}, gathered
    rank = distributed.get_rank()
    torch.manual_seed(0)
    made = partial(FastShardedEmbeddings, sharding=SHARDING)
    network = accelerate(DLRM(TABLES, 4, DIM, bottom=(16, DIM), top=(16,), embeddings=made))
    embeddings = network.embeddings
    assert isinstance(embeddings, FastShardedEmbeddings)
    embeddings.place(torch.device("cpu"), BATCH)
    held = embeddings.held
    assert isinstance(held, TableWiseTables), type(held)
    assert held.replicated == [0, 2], held.replicated
    if exchange == "leaving":
        held.exchange = Leaving(held.shards)
    results = []
    for step in range(STEPS):
        random = torch.Generator().manual_seed(2 * step + rank)
        ids = torch.cat([torch.randint(t.cardinality, (BATCH,), generator=random) for t in TABLES]).int()
        clicks = Clicks(torch.arange(BATCH) % 2.0, torch.randn(BATCH, 4, generator=random), ids)
        logits = network(clicks)
        binary_cross_entropy_with_logits(logits, clicks.labels).backward()
        embeddings.update(torch.tensor(20.0))
        results.append(logits.detach())
        with torch.no_grad():
            results.append(network(clicks))
    return {"logits": torch.stack(results), "state": dict(embeddings.state_dict())}


def test_rows_of_replicated_tables_are_read_to_the_bit(tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks = Ranks(2, tmp_path_factory.mktemp("ranks"))
    try:
        expected = ranks(trained, "whole")
        for results in ranks(trained, "leaving"), ranks(trained, "leaving", False):
            for result, other in zip(results, expected, strict=True):
                assert torch.equal(result["logits"], other["logits"]) and other["logits"].isfinite().all()
            for name, weight in expected[0]["state"].items():
                assert torch.equal(results[0]["state"][name], weight), name
    finally:
        ranks.close()
