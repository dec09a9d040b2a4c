"""Batches of graphs: contents, shapes, order, shares of ranks, resuming."""

from typing import Any

import numpy as np
import pytest
import torch

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.edges import Edges, Kind
from src.datamodules.graphs.loader import MULTIPLE, Buckets, GraphLoader, ResidentGraphs
from tests.support.graph_arrays import plain_graph, random_arrays

COUNT = 50
ARRAYS = random_arrays(COUNT)
TARGETS = np.linspace(-3, 3, COUNT)
KINDS = ("bonds", "radius", "full")


def loader(batch_size: int = 8, kind: Kind = "bonds", **order: Any) -> GraphLoader:
    """Returns a loader of the molecules 5 to 49, in order unless `order` has shuffle=True."""
    graphs = ResidentGraphs(ARRAYS, Edges(kind).of(ARRAYS), TARGETS, torch.device("cpu"))
    buckets = Buckets(graphs.num_nodes, graphs.num_edges, batch_size)
    return GraphLoader(graphs, buckets, torch.arange(5, COUNT), batch_size, **{"shuffle": False, **order})


def rows_of(batch: GraphBatch) -> list[int]:
    """Returns the molecules of a batch, identified by their targets."""
    return [int(np.abs(TARGETS - float(target)).argmin()) for target in batch.targets[: batch.count]]


def drawn(loader: GraphLoader) -> list[list[int]]:
    return [rows_of(batch) for batch in loader]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 8, 45, 64])
def test_a_batch_is_the_concatenation_of_its_molecules(batch_size: int, kind: Kind) -> None:
    for batch in loader(batch_size, kind, shuffle=True):
        rows = rows_of(batch)
        graph, orders, numbers = plain_graph([ARRAYS.molecule(row) for row in rows], kind)
        nodes, edges = len(graph.positions), len(graph.src)
        assert torch.equal(batch.positions[:nodes], graph.positions)
        assert torch.equal(batch.src[:edges], graph.src) and torch.equal(batch.dst[:edges], graph.dst)
        assert torch.equal(batch.dst_ptr[: nodes + 1], graph.dst_ptr)
        assert torch.equal(batch.src_order[:edges], graph.src_order)
        assert torch.equal(batch.src_ptr[: nodes + 1], graph.src_ptr)
        assert torch.equal(batch.graph_ptr[: batch.count + 1], graph.graph_ptr)
        one_hot = torch.tensor(numbers)[:, None] == torch.tensor([1, 6, 7, 8, 9])
        assert torch.equal(batch.node_features[:nodes], torch.cat([one_hot, torch.tensor(numbers)[:, None]], 1).float())
        flags = torch.tensor(orders).reshape(-1, 1) == torch.arange(1, 5)
        assert torch.equal(batch.edge_features[:edges], flags.float())
        assert torch.equal(batch.targets[: batch.count], torch.from_numpy(TARGETS[rows]).float())


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_at_the_end_and_belongs_to_no_molecule(kind: Kind) -> None:
    for batch in loader(8, kind):
        nodes, edges = int(batch.graph_ptr[batch.count]), int(batch.dst_ptr[-1])
        assert nodes < len(batch.positions) and edges <= len(batch.src)
        assert (batch.graph_ptr[batch.count :] == nodes).all() and len(batch.graph_ptr) == 9
        assert (batch.dst_ptr[nodes:] == edges).all() and (batch.src_ptr[nodes:] == edges).all()
        last = len(batch.positions) - 1
        assert (batch.src[edges:] == last).all() and (batch.dst[edges:] == last).all()
        assert batch.src_order[edges:].tolist() == list(range(edges, len(batch.src)))
        for tensor, real in ((batch.positions, nodes), (batch.node_features, nodes), (batch.edge_features, edges)):
            assert not tensor[real:].any() and tensor.dtype == torch.float32
        assert batch.targets.isnan().tolist() == [False] * batch.count + [True] * (8 - batch.count)
        for tensor in (batch.src, batch.dst, batch.dst_ptr, batch.src_order, batch.src_ptr, batch.graph_ptr):
            assert tensor.dtype == torch.int64 and tensor.is_contiguous()


def test_the_last_batch_is_padded_and_nothing_is_dropped() -> None:
    batches = list(loader(8))
    assert [batch.count for batch in batches] == [8, 8, 8, 8, 8, 5] and len(loader(8)) == 6
    assert len({batch.targets.shape for batch in batches}) == 1
    assert [row for batch in batches for row in rows_of(batch)] == list(range(5, COUNT))


def test_epochs_are_permutations_that_differ_and_repeat_with_the_seed() -> None:
    one, other = loader(shuffle=True, seed=3), loader(shuffle=True, seed=3)
    first, second = drawn(one), drawn(one)
    assert first != second and [drawn(other), drawn(other)] == [first, second]
    for epoch in (first, second):
        assert sorted(row for batch in epoch for row in batch) == list(range(5, COUNT))
    assert drawn(loader(shuffle=True, seed=4)) != first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 8), (3, 7), (4, 11), (11, 4), (44, 1)])
def test_ranks_take_every_molecule_once_in_equally_many_steps(world_size: int, batch_size: int, shuffle: bool) -> None:
    ranks = [loader(batch_size, shuffle=shuffle, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [drawn(rank) for rank in ranks]
    assert len({len(share) for share in shares}) == 1 and len(shares[0]) == len(ranks[0])
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(5, COUNT))
    assert max(len(share[-1]) for share in shares) - min(len(share[-1]) for share in shares) <= 1


def test_a_rank_may_have_an_empty_batch() -> None:
    *_, last = loader(11, rank=1, world_size=4)  # 45 molecules: 12 for the first rank and 11 for the others
    assert last.count == 0 and last.targets.isnan().all() and not last.graph_ptr.any() and not last.dst_ptr.any()


def test_a_resumed_loader_gives_the_remaining_batches() -> None:
    uninterrupted = loader(shuffle=True)
    batches = drawn(uninterrupted) + drawn(uninterrupted)
    interrupted = loader(shuffle=True)
    iterator = iter(interrupted)
    for _ in range(4):
        next(iterator)
    resumed = loader(shuffle=True)
    resumed.load_state_dict(interrupted.state_dict())
    assert drawn(resumed) + drawn(resumed) == batches[4:]


def test_buckets_fit_every_batch_and_grow_slowly() -> None:
    generator = np.random.default_rng(0)
    nodes = generator.integers(3, 30, 5000)
    edges = 2 * nodes + generator.integers(-2, 6, 5000)
    buckets = Buckets(nodes, edges, 100)
    first, last = np.array(buckets.shapes[0]), np.array(buckets.shapes[-1])
    mean, spread = np.array([(n.mean() * 100, n.std() * 10) for n in (nodes, edges)]).T
    assert (first >= mean + 4 * spread).all() and (first < mean + 4 * spread + 1 + MULTIPLE).all()
    most = np.array([np.sort(n)[-100:].sum() for n in (nodes, edges)])
    assert (last > most).all() and (last <= most + 1 + MULTIPLE).all()
    shapes = np.array(buckets.shapes)
    assert (shapes % MULTIPLE == 0).all() and (np.diff(shapes, axis=0) >= 0).all()
    assert (shapes[1:] <= 1.1 * shapes[:-1] + MULTIPLE).all() and len(shapes) > 2
    assert buckets.fit(int(first[0]) - 1, 1) == tuple(first) and buckets.fit(int(first[0]), 1) == tuple(shapes[1])
    assert buckets.fit(*most.tolist()) == tuple(last)


def test_small_data_makes_small_batches() -> None:
    assert Buckets(np.array([3, 4]), np.array([4, 6]), 240).shapes == [(MULTIPLE, MULTIPLE)]
    assert Buckets(np.array([1]), np.array([0]), 1).shapes == [(MULTIPLE, MULTIPLE)]
    assert Buckets(np.array([128]), np.array([128]), 1).shapes == [(2 * MULTIPLE, MULTIPLE)]


def test_a_batch_of_large_molecules_takes_a_larger_bucket() -> None:
    arrays = random_arrays(300, seed=1)
    graphs = ResidentGraphs(arrays, Edges().of(arrays), np.zeros(300), torch.device("cpu"))
    buckets = Buckets(graphs.num_nodes, graphs.num_edges, 100)
    ascending = torch.from_numpy(np.argsort(graphs.num_nodes, kind="stable"))
    shapes = [len(batch.positions) for batch in GraphLoader(graphs, buckets, ascending, 100, shuffle=False)]
    assert shapes[0] == shapes[1] == buckets.shapes[0][0] < shapes[2] <= buckets.shapes[-1][0]


@pytest.mark.parametrize("slots", [1, 3 * MULTIPLE, 1 << 20])
def test_batches_gathered_together_are_those_gathered_alone(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a batch of another shape ends what is gathered, and where a training goes on."""
    small = loader(2, shuffle=True)
    small.buckets.shapes = [(16, 32), *small.buckets.shapes]
    monkeypatch.setattr("src.datamodules.graphs.loader.AHEAD", 1)
    alone = list(small)
    assert len({len(batch.positions) for batch in alone}) == 2
    monkeypatch.setattr("src.datamodules.graphs.loader.AHEAD", 5)
    monkeypatch.setattr("src.datamodules.graphs.loader.SLOTS", slots)
    for first in (0, 7):
        small.load_state_dict({"epoch": 0, "position": first})
        for one, other in zip(alone[first:], small, strict=True):
            pairs = zip(one[:-1], other[:-1], strict=True)
            assert one.count == other.count and all(x.nan_to_num(-1).equal(y.nan_to_num(-1)) for x, y in pairs)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_batches_are_assembled_on_the_gpu_without_synchronisation() -> None:
    on_cpu = loader(8, shuffle=True)
    graphs = ResidentGraphs(ARRAYS, Edges().of(ARRAYS), TARGETS, torch.device("cuda"))
    on_gpu = GraphLoader(graphs, on_cpu.buckets, on_cpu.index, 8, shuffle=True)
    on_gpu.begin(on_gpu._order())
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [on_gpu.batch(step) for step in range(len(on_gpu))]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for expected, batch in zip(on_cpu, batches, strict=True):
        assert expected.count == batch.count
        for one, other in zip(expected[:-1], batch[:-1], strict=True):
            assert torch.equal(one.nan_to_num(-1), other.cpu().nan_to_num(-1))
