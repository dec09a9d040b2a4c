"""Kekule forms against those that RDKit wrote for the published arrays, and against a search of all forms."""

from itertools import combinations

import pytest
from rdkit import Chem

from src.molecules.kekule import kekulize

# Canonical SMILES with the double bonds in their aromatic rings, as RDKit 2022.09.5 wrote them.
PUBLISHED = {
    "c1ccccc1": [(0, 1), (2, 3), (4, 5)],
    "Cc1ccc(F)cc1": [(1, 2), (3, 4), (6, 7)],
    "Cc1ccc2ccccc2c1": [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)],
    "c1ccc2c(c1)[nH]c1ccccc12": [(0, 1), (2, 3), (4, 5), (7, 8), (9, 10), (11, 12)],
    "CC(C)(C)c1ccc2occ(CC(=O)Nc3ccccc3F)c2c1": [(4, 5), (6, 7), (9, 10), (15, 16), (17, 18), (19, 20), (22, 23)],
    "COc1cc2nc(N3CCN(C(=O)c4ccco4)CC3)nc(N)c2cc1OC": [(2, 3), (4, 5), (6, 20), (13, 14), (15, 16), (21, 23), (24, 25)],
    "Cn1c(=O)c2c(ncn2C)n(C)c1=O": [(4, 5), (6, 7)],
    "c1cc2ccc3cccc4ccc(c1)c2c34": [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)],
}
FULLERENE = (
    "c12c3c4c5c1c1c6c7c2c2c8c3c3c9c4c4c%10c5c5c1c1c6c6c%11c7c2c2c7c8c3c3c8c9c4c4c9c%10c5c5c1c1c6c6c%11c2c2c7c3c3c8c4c4"
    "c9c5c1c1c6c2c3c41"
)


def aromatic_bonds(molecule: Chem.Mol) -> list[tuple[int, int]]:
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds() if bond.GetIsAromatic()]
    return sorted((min(pair), max(pair)) for pair in pairs)


def double_bonds(molecule: Chem.Mol) -> list[tuple[int, int]]:
    kekulize(molecule)
    aromatic, orders = aromatic_bonds(molecule), Chem.GetAdjacencyMatrix(molecule, useBO=True)
    return [pair for pair in aromatic if orders[pair] == 2]


@pytest.mark.parametrize("smiles", PUBLISHED)
def test_the_forms_are_those_of_the_published_arrays(smiles: str) -> None:
    assert double_bonds(Chem.MolFromSmiles(smiles)) == PUBLISHED[smiles]


def test_the_form_is_the_first_of_all(neutral: list[str]) -> None:
    """As many double bonds that share no atom, on the same atoms: the first such set in the order of their atoms."""
    for smiles in neutral:
        molecule = Chem.MolFromSmiles(smiles)
        bonds = double_bonds(molecule)
        atoms = {atom for pair in bonds for atom in pair}
        candidates = [pair for pair in aromatic_bonds(molecule) if atoms.issuperset(pair)]
        complete = (
            some for some in combinations(candidates, len(bonds)) if {a for pair in some for a in pair} == atoms
        )
        assert bonds == list(next(complete)), smiles


def test_other_bonds_and_the_molecule_stay(neutral: list[str]) -> None:
    for smiles in neutral:
        molecule, expected = Chem.MolFromSmiles(smiles), Chem.MolFromSmiles(smiles)
        kekulize(molecule)
        Chem.Kekulize(expected)
        for bond, other in zip(molecule.GetBonds(), expected.GetBonds(), strict=True):
            assert bond.GetIsAromatic() == other.GetIsAromatic()
            assert bond.GetIsAromatic() or bond.GetBondType() == other.GetBondType()
        assert Chem.CanonSmiles(Chem.MolToSmiles(molecule)) == Chem.CanonSmiles(smiles)


def test_a_cage_of_sixty_atoms_takes_no_time() -> None:
    molecule = Chem.MolFromSmiles(FULLERENE)
    bonds = double_bonds(molecule)  # which would take longer than anyone waits, if it tried all of them
    assert sorted(atom for pair in bonds for atom in pair) == list(range(60))
