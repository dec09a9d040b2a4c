"""Counts of molecules' parts: those of RDKit on real molecules, and expectations of independent bonds."""

from itertools import product

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch.testing import assert_close

from src.models.moflow.counts import (
    FAR,
    MOST_ORDERS,
    alternating,
    atom_counts,
    bond_counts,
    bonded,
    neighbours,
    orders,
    pairs,
    rings,
    spans,
    valences,
    without_loops,
)
from src.molecules.encode import encode
from src.molecules.vocabulary import ZINC250K
from tests.support.tiny_run import SMILES


def one_hot(smiles: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns elements and bonds of a molecule, as a batch of one."""
    nodes, edges = encode(smiles, ZINC250K)
    bonds = torch.arange(4)[:, None, None] == torch.from_numpy(np.array(edges))
    return torch.nn.functional.one_hot(torch.from_numpy(np.array(nodes)).long(), 10).double()[None], bonds.double()[
        None
    ]


def kekulised(smiles: str) -> Chem.Mol:
    molecule = Chem.MolFromSmiles(smiles)
    Chem.Kekulize(molecule, clearAromaticFlags=True)
    return molecule


def test_a_rings_last_bond_spans_its_size_less_one() -> None:
    """In the order of the SMILES; each bond counts once, by its kind; those that span more than FAR count together."""
    counted = {
        "C1CCCCC1": {(1, 1): 5, (1, 5): 1},
        "O=C1C=CN1": {(2, 1): 2, (1, 1): 2, (1, 3): 1},
        "C1" + "C" * 12 + "1": {(1, 1): 12, (1, FAR + 1): 1},
    }
    for smiles, expected in counted.items():
        counts = spans(one_hot(smiles)[1]).view(3, FAR + 1)
        assert {
            (kind + 1, apart + 1): int(counts[kind, apart]) for kind, apart in counts.nonzero().tolist()
        } == expected


@pytest.mark.parametrize(
    "smiles", ["C1CC1", "C1CCC1", "C1CC2CC1C2", "c1ccoc1", "C1CC12CCCC2", "CC(C)C", "C12C3C1C23", "C12C3C4C1C5C2C3C45"]
)
def test_rings_of_up_to_five_atoms_are_all_cycles_of_the_graph(smiles: str) -> None:
    """Found by trying each sequence of atoms; the last two are tetrahedrane and cubane."""
    adjacency = Chem.GetAdjacencyMatrix(Chem.MolFromSmiles(smiles))
    atoms = range(len(adjacency))

    def cycles(size: int) -> int:
        steps = (walk for walk in product(atoms, repeat=size) if len(set(walk)) == size)
        closed = sum(all(adjacency[a, b] for a, b in zip(walk, (*walk[1:], walk[0]), strict=True)) for walk in steps)
        return closed // (2 * size)

    assert_close(rings(one_hot(smiles)[1])[0].tolist(), [float(cycles(size)) for size in (3, 4, 5)])


def test_without_loops_no_atom_has_a_bond_to_itself() -> None:
    bonds = torch.rand(2, 3, 4, 4)
    expected = bonds.clone()
    for atom in range(4):
        expected[:, :, atom, atom] = 0
    assert torch.equal(without_loops(bonds), expected)


def test_benzene_alternates() -> None:
    """So does one ring of naphthalene in the Kekulé form that is written."""
    cases = {"c1ccccc1": 1, "c1ccccc1-c1ccccc1": 2, "c1ccc2ccccc2c1": 1, "C1CCCCC1": 0, "C1=CC=CCC1": 0, "C=CC=CC=C": 0}
    for smiles, expected in cases.items():
        assert alternating(one_hot(smiles)[1])[0, 0] == expected
    assert alternating(one_hot("CC=CC")[1]).tolist() == [[0, 2, 2, 0]]  # in both directions


def test_neighbours_are_those_of_rdkit() -> None:
    for smiles in SMILES[:40]:
        kinds = [
            [int(bond.GetBondTypeAsDouble()) - 1 for bond in atom.GetBonds()] for atom in kekulised(smiles).GetAtoms()
        ]
        together = np.zeros((3, 3))
        for bonds in kinds:
            for i, j in product(range(len(bonds)), repeat=2):
                together[bonds[i], bonds[j]] += i != j
        number = np.bincount([kind for bonds in kinds for kind in bonds], minlength=3) / 2
        expected = [*number, *together.ravel(), sum(len(bonds) ** 3 for bonds in kinds)]
        assert_close(neighbours(one_hot(smiles)[1])[0].tolist(), [float(value) for value in expected])


def test_elements_are_counted_by_their_bonds_as_rdkit_does() -> None:
    for smiles in SMILES[:40]:
        elements, bonds = one_hot(smiles)
        molecule = kekulised(smiles)
        number = [ZINC250K.atomic_numbers.index(atom.GetAtomicNum()) for atom in molecule.GetAtoms()]
        between, by_orders = np.zeros((3, 10, 10)), np.zeros((10, MOST_ORDERS + 1))
        for bond in molecule.GetBonds():
            ends = number[bond.GetBeginAtomIdx()], number[bond.GetEndAtomIdx()]
            for pair in (ends, ends[::-1]):
                between[(int(bond.GetBondTypeAsDouble()) - 1, *pair)] += 1
        for atom in molecule.GetAtoms():
            by_orders[number[atom.GetIdx()], int(sum(bond.GetBondTypeAsDouble() for bond in atom.GetBonds()))] += 1
        by_orders[0, 0] = elements.shape[1] - len(number)  # empty places
        assert_close(bonded(elements, bonds)[0], torch.from_numpy(between.ravel()))
        assert_close(valences(elements, bonds)[0], torch.from_numpy(by_orders.ravel()))
        assert atom_counts(elements, bonds).shape[1] == between.size + by_orders.size


def test_counts_of_independent_bonds_are_expectations() -> None:
    """The mean over all graphs of five atoms, weighted with their probabilities; cubed degrees are no such mean."""
    torch.manual_seed(0)
    ends = torch.tril_indices(5, 5, -1)
    chance = torch.rand(10, 2, dtype=torch.float64)
    chance = chance / chance.sum(1, keepdim=True)  # of no bond and of a single one
    likely = graphs(chance[None, :, 0], ends)
    choices = torch.tensor(list(product([0.0, 1.0], repeat=10)), dtype=torch.float64)
    weight = (chance[:, 0] * choices + chance[:, 1] * (1 - choices)).prod(1)
    every = graphs(choices, ends)
    for count, kept in ((pairs, 64), (spans, 64), (rings, 3), (neighbours, 12)):
        expected = (weight[:, None] * count(every)).sum(0)
        assert_close(count(likely)[0, :kept], expected[:kept])
    assert_close(orders(likely)[0], (weight[:, None] * orders(every)).sum(0))
    assert bond_counts(likely).shape == (1, 3 * 4 + 3 + 4 + 13)


def graphs(none: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns bonds of kinds 0 to 3 of which the first two have a probability."""
    bonds = torch.zeros(len(none), 4, 5, 5, dtype=torch.float64)
    for row, column in (ends, ends.flip(0)):
        bonds[:, 0, row, column], bonds[:, 1, row, column] = none, 1 - none
    return bonds
