"""Random molecules as arrays, and slow references for their edges and batches."""

import numpy as np
import torch

from src.batches.molecular_graphs import Graph
from src.datamodules.graphs.data import Arrays, Molecule

NUMBERS = np.array([1, 6, 7, 8, 9], np.uint8)


def random_molecule(generator: np.random.Generator, atoms: int) -> Molecule:
    """Returns a molecule whose bonds are a random tree with a few rings."""
    parents = [(int(generator.integers(0, atom)), atom) for atom in range(1, atoms)]
    rings = [tuple(sorted(generator.choice(atoms, 2, replace=False).tolist())) for _ in range(atoms // 6)]
    bonds = np.array(sorted({*parents, *rings}), np.int32).reshape(-1, 2)
    return Molecule(
        generator.choice(NUMBERS, atoms),
        generator.normal(size=(atoms, 3)).astype(np.float32) * 2,
        bonds,
        generator.integers(1, 5, len(bonds)).astype(np.uint8),
    )


def random_arrays(count: int, seed: int = 0, largest: int = 12) -> Arrays:
    """`count` molecules of 1 to `largest` atoms."""
    generator = np.random.default_rng(seed)
    return Arrays.of(random_molecule(generator, int(generator.integers(1, largest + 1))) for _ in range(count))


def plain_edges(molecule: Molecule, kind: str = "bonds", cutoff: float = 5.0) -> list[tuple[int, int, int]]:
    """(dst, src, order of the bond or 0) of every edge of one molecule, ascending."""
    orders = {tuple(bond): int(order) for bond, order in zip(molecule.bonds.tolist(), molecule.orders, strict=True)}
    orders |= {(end, start): order for (start, end), order in orders.items()}
    edges = []
    for dst in range(len(molecule.numbers)):
        for src in range(len(molecule.numbers)):
            near = np.linalg.norm(molecule.positions[dst] - molecule.positions[src]) <= cutoff
            is_edge = kind == "full" or (kind == "radius" and near)
            if src != dst and (is_edge or (src, dst) in orders):
                edges.append((dst, src, orders.get((src, dst), 0)))
    return edges


def plain_graph(molecules: list[Molecule], kind: str = "bonds") -> tuple[Graph, list[int], list[int]]:
    """Returns the graph of the concatenated molecules, the orders of its edges and the atomic numbers of its nodes."""
    edges, start = [], 0
    for molecule in molecules:
        edges += [(dst + start, src + start, order) for dst, src, order in plain_edges(molecule, kind)]
        start += len(molecule.numbers)
    table = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3)
    positions = torch.from_numpy(np.concatenate([molecule.positions for molecule in molecules]))
    graph = Graph.build(positions, table[:, 1], table[:, 0], [len(molecule.numbers) for molecule in molecules])
    return graph, table[:, 2].tolist(), [int(number) for molecule in molecules for number in molecule.numbers]
