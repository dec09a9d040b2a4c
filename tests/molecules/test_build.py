"""Building and correcting molecules, against a literal implementation of the published procedure."""

import re

import numpy as np
import pytest
from rdkit import Chem, rdBase

from src.molecules.build import build_molecule, canonical_smiles, correct, published_smiles
from src.molecules.encode import encode
from src.molecules.vocabulary import QM9, ZINC250K

pytestmark = pytest.mark.slow

ORDERS = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}


@pytest.fixture(autouse=True)
def quiet():
    with rdBase.BlockLogs():
        yield


def overvalent(molecule):
    """Returns (atom, valence) from RDKit's error message; None if all valences are valid."""
    try:
        Chem.SanitizeMol(molecule, Chem.SANITIZE_PROPERTIES)
    except ValueError as error:
        atom, valence = re.findall(r"atom # (\d+) \w+, (\d+)", str(error))[0]
        return int(atom), int(valence)
    return None


def literal(nodes, edges, vocabulary):
    """Builds a molecule by the published procedure, which checks valences after every bond."""
    present = nodes > 0
    molecule = Chem.RWMol()
    for k in nodes[present]:
        molecule.AddAtom(Chem.Atom(vocabulary.atomic_numbers[k]))
    adjacency = edges[present][:, present]
    for start in range(len(adjacency)):
        for end in range(start):
            if not adjacency[start, end]:
                continue
            molecule.AddBond(start, end, ORDERS[int(adjacency[start, end])])
            if (violation := overvalent(molecule)) is not None:
                atom = molecule.GetAtomWithIdx(violation[0])
                base = {7: 3, 8: 2, 16: 2}.get(atom.GetAtomicNum())
                if base is not None and violation[1] - base == 1:
                    atom.SetFormalCharge(1)
    return molecule


def literal_smiles(molecule):
    """Returns the SMILES of a valid molecule, else None."""
    parsed = Chem.MolFromSmiles(Chem.MolToSmiles(molecule))
    if parsed is None or not Chem.MolToSmiles(parsed) or "." in Chem.MolToSmiles(parsed):
        return None
    return Chem.MolToSmiles(parsed, isomericSmiles=False)


def literal_correct(molecule):
    """Returns the SMILES after the published validity correction, and the number of fragments before it."""
    while (violation := overvalent(molecule)) is not None:
        bonds = [
            (-int(bond.GetBondTypeAsDouble()), position, bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
            for position, bond in enumerate(molecule.GetAtomWithIdx(violation[0]).GetBonds())
        ]
        order, _, start, end = min(bonds)
        molecule.RemoveBond(start, end)
        if -order > 1:
            molecule.AddBond(start, end, ORDERS[-order - 1])
    fragments = Chem.GetMolFrags(molecule, asMols=True)
    kept = max(fragments, key=lambda fragment: fragment.GetNumAtoms())
    return canonical_smiles(Chem.MolFromSmiles(Chem.MolToSmiles(kept))), len(fragments)


def random_graphs(count, vocabulary, seed, bonds_per_atom, joined=0.98):
    """Yields graphs of trees with a few more bonds: many valid, many just over a valence, some with fragments.

    `joined` is the probability that an atom has a bond to an earlier one.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(1, vocabulary.max_atoms + 1))
        nodes = np.zeros(vocabulary.max_atoms, np.uint8)
        nodes[rng.permutation(vocabulary.max_atoms)[:size]] = (
            rng.choice(vocabulary.num_classes - 1, size, p=weights(vocabulary)) + 1
        )
        atoms = np.flatnonzero(nodes)
        edges = np.zeros((vocabulary.max_atoms, vocabulary.max_atoms), np.uint8)
        for i in range(1, size):
            for j in rng.choice(
                i, min(i, int(rng.random() < bonds_per_atom) + int(rng.random() < joined)), replace=False
            ):
                order = rng.choice(3, p=(0.8, 0.17, 0.03)) + 1
                edges[atoms[i], atoms[j]] = edges[atoms[j], atoms[i]] = order
        yield nodes, edges


def weights(vocabulary):
    """Returns probabilities of the atom classes: mostly carbon, then elements that can be charged."""
    raw = np.array([{6: 6, 7: 4, 8: 1.5}.get(number, 0.25) for number in vocabulary.atomic_numbers[1:]])
    return raw / raw.sum()


@pytest.mark.parametrize(("vocabulary", "count", "extra"), [(QM9, 3000, 0.15), (ZINC250K, 800, 0.02)])
def test_random_graphs_give_the_molecules_of_the_published_procedure(vocabulary, count, extra):
    valid = charged = 0
    for nodes, edges in random_graphs(count, vocabulary, 7, extra):
        slow = literal(nodes, edges, vocabulary)
        expected = literal_smiles(slow)
        molecule = build_molecule(nodes, edges, vocabulary)
        assert (None if molecule is None else canonical_smiles(molecule)) == expected
        assert published_smiles(nodes, edges, vocabulary) == Chem.MolToSmiles(slow)
        valid += expected is not None
        charged += expected is not None and "+" in expected
    # The comparison needs valid, invalid and charged molecules.
    assert valid > count / 20 and valid < count and charged > 5


@pytest.mark.parametrize(("vocabulary", "count", "joined"), [(QM9, 1000, 0.7), (ZINC250K, 100, 0.98)])
def test_correction_gives_the_molecules_of_the_published_procedure(vocabulary, count, joined):
    fragmented = 0
    for nodes, edges in random_graphs(count, vocabulary, 11, 0.5, joined):
        expected, fragments = literal_correct(literal(nodes, edges, vocabulary))
        molecule = correct(nodes, edges, vocabulary)
        assert molecule is not None
        assert canonical_smiles(molecule) == expected
        fragmented += fragments > 1
    assert fragmented > count / 4


def graph(classes, bonds, vocabulary=QM9):
    nodes, edges = np.zeros(9, np.uint8), np.zeros((9, 9), np.uint8)
    nodes[: len(classes)] = classes
    for a, b, order in bonds:
        edges[a, b] = edges[b, a] = order
    return nodes, edges, vocabulary


C, N, O = 1, 2, 3  # noqa: E741
I = 9  # noqa: E741 # of ZINC250K


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (graph([], []), None),
        (graph([C], []), "C"),
        (graph([C, C], []), None),
        (graph([C, C, C], [(0, 1, 3), (1, 2, 2)]), None),
        (graph([C, N, C, C, C], [(0, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1)]), "C[N+](C)(C)C"),
        # Nitrogen goes from 3 bonds to 5 and gets no charge; the parser then turns it into a nitro group.
        (graph([C, N, O, O], [(0, 1, 1), (1, 2, 2), (1, 3, 2)]), "C[N+](=O)[O-]"),
        # In another order of atoms it has 4 bonds in between and gets a charge, so the same graph is invalid.
        (graph([O, O, N, C], [(0, 2, 2), (1, 2, 2), (2, 3, 1)]), None),
        (graph([0, C, 0, O], [(1, 3, 1)]), "CO"),
    ],
)
def test_each_graph_gives_its_molecule_or_none(arguments, expected):
    molecule = build_molecule(*arguments)
    assert (None if molecule is None else canonical_smiles(molecule)) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (graph([], []), None),
        # The highest bond order is lowered, and the largest fragment kept.
        (graph([C, C, C, N, O], [(0, 1, 3), (1, 2, 2), (3, 4, 1)]), "C=C=C"),
        # Of equally large fragments the first by atom index is kept, whatever their order in SMILES.
        (graph([N, O, C, C], [(0, 1, 1), (2, 3, 1)]), "NO"),
        (graph([C, C, N, O], [(0, 1, 1), (2, 3, 1)]), "CC"),
        (graph([C, N, O, C, C, C], [(0, 3, 1), (1, 2, 1), (4, 5, 1)]), "CC"),
        (graph([N, C, O, C], [(0, 2, 1), (1, 3, 1)]), "NO"),
        # The small fragment ends as [O+](=[IH])N, which no parser reads; the large one is valid without it.
        (graph([O, I, N, C, C, C, C], [(0, 1, 3), (0, 2, 1), (3, 4, 1), (4, 5, 1), (5, 6, 1)], ZINC250K), "CCCC"),
        (graph([O, I, N, C, C], [(0, 1, 3), (0, 2, 1), (3, 4, 1)], ZINC250K), None),
    ],
)  # fmt: skip
def test_correction_keeps_the_largest_fragment(arguments, expected):
    molecule = correct(*arguments)
    assert (None if molecule is None else canonical_smiles(molecule)) == expected


def test_correction_does_not_change_valid_molecules(neutral):
    for smiles in neutral:
        molecule = correct(*encode(smiles, ZINC250K), ZINC250K)
        assert molecule is not None
        assert canonical_smiles(molecule) == canonical_smiles(Chem.MolFromSmiles(smiles))
