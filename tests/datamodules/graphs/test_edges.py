"""Bonds, radius and full edges against a plain double loop."""

import numpy as np
import pytest

from src.datamodules.graphs import edges as graph_edges
from src.datamodules.graphs.data import Arrays
from src.datamodules.graphs.edges import Edges, Kind
from tests.support.graph_arrays import plain_edges, random_arrays


@pytest.mark.parametrize("chunk", [1, 300, 1 << 20])
@pytest.mark.parametrize("kind", ["bonds", "radius", "full"])
def test_edges_equal_those_of_a_double_loop(kind: Kind, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_edges, "CHUNK", chunk)
    arrays = random_arrays(30)
    edges = Edges(kind, cutoff=2.5).of(arrays)
    start = 0
    for row, count in enumerate(edges.num_edges):
        span = slice(start, start + count)
        triples = list(
            zip(edges.dst[span].tolist(), edges.src[span].tolist(), edges.orders[span].tolist(), strict=True)
        )
        assert triples == plain_edges(arrays.molecule(row), kind, cutoff=2.5)
        start += count
    assert start == len(edges.src)
    back = np.arange(start) + edges.reverse
    assert np.array_equal(edges.src[back], edges.dst) and np.array_equal(edges.dst[back], edges.src)
    assert np.array_equal(edges.orders[back], edges.orders)


def test_full_edges_include_radius_edges_which_include_bonds() -> None:
    arrays = random_arrays(30)
    bonds, radius, full = (Edges(kind, cutoff=2.5).of(arrays) for kind in ("bonds", "radius", "full"))
    assert (bonds.orders > 0).all() and len(bonds.src) == 2 * len(arrays.bonds)
    assert len(bonds.src) < len(radius.src) < len(full.src)
    assert np.array_equal(full.num_edges, arrays.num_atoms * (arrays.num_atoms - 1))
    assert (radius.orders > 0).sum() == (full.orders > 0).sum() == len(bonds.src)


def test_no_molecules_have_no_edges() -> None:
    assert len(Edges("full").of(Arrays.of([])).src) == 0
