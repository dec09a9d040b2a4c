"""Bonds from a SMILES or from distances."""

import numpy as np
import pytest
from rdkit import Chem, RDLogger

from src.datamodules.graphs.bonds import bonded_by_distance, bonded_by_smiles, molecule_of
from src.datamodules.graphs.data import Molecule, MoleculeError, checked
from src.datamodules.graphs.parse import from_smiles
from src.datamodules.graphs.qm9 import parse
from tests.support.qm9_rows import content

CYCLOBUTANE = np.array(
    [[0, 0, 0], [1.55, 0, 0], [1.55, 1.55, 0], [0, 1.55, 0]]
    + [[x, y, z] for x, y in ((-0.6, -0.6), (2.15, -0.6), (2.15, 2.15), (-0.6, 2.15)) for z in (-0.7, 0.7)]
)  # roughly


@pytest.fixture(autouse=True)
def silent() -> None:
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]


def bonds_of(molecule: Molecule) -> list[tuple[int, int, int]]:
    return [(*bond, int(order)) for bond, order in zip(molecule.bonds.tolist(), molecule.orders, strict=True)]


def double_bonds(molecule: Molecule) -> list[list[int]]:
    return sorted(sorted((start, end)) for start, end, order in bonds_of(molecule) if order == 2)


def positions_of(number: int) -> np.ndarray:
    return parse(content(number))[0].positions


@pytest.mark.parametrize(
    ("number", "bonds"),
    [
        (1, [(0, 1, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1)]),
        (2, [(0, 1, 1), (0, 2, 1), (0, 3, 1)]),
        (3, [(0, 1, 1), (0, 2, 1)]),
        (4, [(0, 1, 3), (0, 3, 1), (1, 2, 1)]),
        (5, [(0, 1, 3), (0, 2, 1)]),
        (6, [(0, 1, 2), (0, 2, 1), (0, 3, 1)]),
        (282, [(0, 1, 1), (0, 3, 1), (0, 8, 1), (1, 2, 2), (1, 5, 1), (2, 4, 1), (2, 9, 1), (5, 6, 1), (5, 7, 2)]),
    ],
    ids=["CH4", "NH3", "H2O", "C2H2", "HCN", "CH2O", "zwitterion"],
)
def test_molecules_of_qm9_have_the_bonds_of_chemistry(number: int, bonds: list[tuple[int, int, int]]) -> None:
    molecule, note = parse(content(number))[:2]
    result = bonds_of(molecule)
    if number == 282:  # hydrogens are numbered as in the file, so their bonds are checked by the atoms' valences
        orders = np.zeros(len(molecule.numbers), int)
        for start, end, order in result:
            orders[[start, end]] += order
        assert orders.tolist() == [3, 4, 4, 1, 1, 4, 1, 2, 1, 1]
        assert {(start, end, order) for start, end, order in result if end in (1, 2, 5, 6, 7)} == {
            bond for bond in bonds if bond[1] in (1, 2, 5, 6, 7)
        }
    else:
        assert result == bonds
    assert note == ""


def test_atoms_in_another_order_than_the_smiles_are_matched_by_their_bonds() -> None:
    molecule, note = parse(content(23))[:2]
    assert bonds_of(molecule) == [(0, 1, 1), (0, 3, 3), (1, 2, 3), (2, 4, 1), (3, 5, 1)]
    assert note == (
        "C#CC#C does not fit the coordinates in their order: it has its hydrogens at other atoms; "
        "atoms were matched by their bonds"
    )


def test_a_reordered_molecule_keeps_its_bonds() -> None:
    numbers, positions = np.array([6, 8, 1, 1], np.uint8), positions_of(6)
    order = np.array([2, 1, 3, 0])
    molecule, note = bonded_by_smiles("C=O", numbers[order], positions[order])
    assert bonds_of(molecule) == [(0, 3, 1), (1, 3, 2), (2, 3, 1)] and "has the elements in another order" in note


def test_matching_respects_hydrogens() -> None:
    propene = from_smiles("CC=C").molecule
    molecule, note = bonded_by_smiles("C=CC", propene.numbers, propene.positions)
    assert bonds_of(molecule) == bonds_of(propene) and note.endswith("atoms were matched by their bonds")


def test_bonds_come_from_distances_if_the_smiles_does_not_fit() -> None:
    numbers = np.array([6] * 4 + [1] * 8, np.uint8)
    ring, note = bonded_by_smiles("C1CCC1", numbers, CYCLOBUTANE)
    assert note == "" and bonds_of(ring)[:5] == [(0, 1, 1), (0, 3, 1), (0, 4, 1), (0, 5, 1), (1, 2, 1)]
    other, note = bonded_by_smiles("C1CC1C", numbers, CYCLOBUTANE)
    assert bonds_of(other) == bonds_of(ring)
    assert note.endswith("in any order it has other bonds; bonds were taken from the distances")
    hydrogen, note = bonded_by_smiles("[H][H]", np.array([1, 1], np.uint8), np.array([[0, 0, 0], [0.75, 0, 0]]))
    assert bonds_of(hydrogen) == [(0, 1, 1)] and "distances" in note


def test_a_stretched_bond_is_refused() -> None:
    hcn = positions_of(5)
    hcn[1, 1] -= 0.9
    with pytest.raises(MoleculeError, match="no bond orders"):
        bonded_by_smiles("C#N", np.array([6, 7, 1], np.uint8), hcn)


def test_distances_alone_give_bonds_and_orders() -> None:
    assert bonds_of(bonded_by_distance(np.array([6, 7, 1], np.uint8), positions_of(5))) == [
        (0, 1, 3), (0, 2, 1)
    ]  # fmt: skip
    apart = bonded_by_distance(np.array([1, 1], np.uint8), np.array([[0, 0, 0], [3.0, 0, 0]]))
    assert bonds_of(apart) == []
    ammonium = np.array([[0, 0, 0], [0.6, 0.6, 0.6], [-0.6, -0.6, 0.6], [0.6, -0.6, -0.6], [-0.6, 0.6, -0.6]])
    with pytest.raises(MoleculeError, match="a charge of 0"):
        bonded_by_distance(np.array([7, 1, 1, 1, 1], np.uint8), ammonium)
    assert len(bonds_of(bonded_by_distance(np.array([7, 1, 1, 1, 1], np.uint8), ammonium, charge=1))) == 4


def test_aromatic_bonds_become_single_and_double_ones() -> None:
    mol = Chem.AddHs(Chem.MolFromSmiles("c1ccccc1"))
    conformer = Chem.Conformer(12)
    for atom in range(12):
        conformer.SetAtomPosition(atom, [float(atom), 0, 0])
    mol.AddConformer(conformer)
    assert double_bonds(molecule_of(mol)) == [[0, 1], [2, 3], [4, 5]]


def test_a_ring_begins_with_its_double_bond_whatever_form_rdkit_takes() -> None:
    for smiles in ("c1ccccc1", "Cc1ccc(F)cc1"):
        embedded = from_smiles(smiles).molecule
        molecule, _ = bonded_by_smiles(smiles, embedded.numbers, embedded.positions)
        assert double_bonds(molecule) == double_bonds(embedded)
        assert double_bonds(molecule)[0] == ([0, 1] if smiles[0] == "c" else [1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": [6, 119]}, "atom 2 has atomic number 119"),
        ({"numbers": [6, 0]}, "atom 2 has atomic number 0"),
        ({"positions": [[0, 0, 0], [0, np.nan, 1]]}, "no finite coordinates for atom 2"),
        ({"positions": [[np.inf, 0, 0], [0, 0, 1]]}, "no finite coordinates for atom 1"),
        ({"positions": [[1, 2, 3], [1, 2, 3.0000001]]}, "atoms 1 and 2 at the same position"),
        ({"bonds": [[0, 2]]}, "a bond that does not join two of its 2 atoms"),
        ({"bonds": [[1, 1]]}, "a bond that does not join two of its 2 atoms"),
        ({"bonds": [[0, 1], [1, 0]], "orders": [1, 2]}, "two bonds between the same atoms"),
        ({"numbers": [], "positions": np.zeros((0, 3)), "bonds": np.zeros((0, 2)), "orders": []}, "has no atoms"),
    ],
)
def test_an_invalid_molecule_is_refused(change: dict[str, object], message: str) -> None:
    fields = {"numbers": [6, 8], "positions": [[0, 0, 0], [0, 0, 1.2]], "bonds": [[0, 1]], "orders": [1]} | change
    types = {"numbers": np.uint8, "positions": np.float64, "bonds": np.int32, "orders": np.uint8}
    arrays = {name: np.array(fields[name], dtype) for name, dtype in types.items()}
    with pytest.raises(MoleculeError, match=message):
        checked(Molecule(**arrays))


def test_coincident_atoms_are_found_among_many() -> None:
    positions = np.random.default_rng(0).normal(size=(600, 3)) * 20
    bare = Molecule(np.full(600, 6, np.uint8), positions, np.zeros((0, 2), np.int32), np.zeros(0, np.uint8))
    checked(bare)
    positions[590] = positions[300]
    with pytest.raises(MoleculeError, match="atoms 301 and 591"):
        checked(bare)
