"""Chemical bonds of atoms with coordinates: from a SMILES, or from the coordinates alone."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from rdkit import Chem
from rdkit.Chem import rdDetermineBonds

from src.datamodules.graphs.data import Molecule, MoleculeError, checked
from src.molecules.kekule import kekulize

ORDERS = {Chem.BondType.SINGLE: 1, Chem.BondType.DOUBLE: 2, Chem.BondType.TRIPLE: 3, Chem.BondType.AROMATIC: 4}
STRETCH = 1.3  # longest bond, as a multiple of the sum of its atoms' covalent radii
MAX_ITERATIONS = 100_000  # of the search for bond orders, which takes hours if many atoms are charged

Numbers = UInt8[np.ndarray, " atoms"]
Positions = Float[np.ndarray, "atoms 3"]


def molecule_of(mol: Chem.Mol) -> Molecule:
    """Converts RDKit's molecule with hydrogens and conformer; aromatic bonds become single and double ones."""
    try:
        kekulize(mol)
    except Chem.KekulizeException as error:
        raise MoleculeError("has aromatic bonds that cannot be kekulized into single and double ones") from error
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()], np.uint8)
    bonds = [
        (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS.get(bond.GetBondType(), 0)) for bond in mol.GetBonds()
    ]
    table = np.array(bonds, np.int32).reshape(-1, 3)
    if not table[:, 2].all():
        raise MoleculeError("has a bond that is not single, double or triple")
    return checked(Molecule(numbers, mol.GetConformer().GetPositions(), table[:, :2], table[:, 2].astype(np.uint8)))


def bonded_by_distance(numbers: Numbers, positions: Positions, charge: int = 0) -> Molecule:
    """Returns the molecule with the bonds that distances and valences imply (RDKit's rdDetermineBonds)."""
    bonded = mol_by_distance(numbers, positions, charge)
    return bonded if isinstance(bonded, Molecule) else molecule_of(bonded)


def mol_by_distance(numbers: Numbers, positions: Positions, charge: int = 0) -> Chem.Mol | Molecule:
    """Returns RDKit's molecule with the bonds that distances and valences imply; the bare one if there are none.

    `charge`: of the whole molecule. Atoms that are all far from each other have no bonds. Raises MoleculeError if no
    bond orders fit.
    """
    bare = checked(Molecule(numbers, positions, np.zeros((0, 2), np.int32), np.zeros(0, np.uint8)))
    if not _near(bare.numbers, bare.positions).any():
        return bare
    mol = Chem.RWMol()
    conformer = Chem.Conformer(len(numbers))
    for number, position in zip(bare.numbers.tolist(), bare.positions.tolist(), strict=True):
        conformer.SetAtomPosition(mol.AddAtom(Chem.Atom(number)), position)
    mol.AddConformer(conformer)
    try:
        rdDetermineBonds.DetermineBonds(
            mol, charge=charge, covFactor=STRETCH, embedChiral=False, maxIterations=MAX_ITERATIONS
        )
    except (ValueError, RuntimeError) as error:
        raise MoleculeError(
            f"has no bond orders that fit its coordinates and a charge of {charge} (an .xyz comment gives charge=1)",
            "has no bond orders that fit its coordinates and its charge",
        ) from error
    return mol


def bonded_by_smiles(smiles: str, numbers: Numbers, positions: Positions) -> tuple[Molecule, str]:
    """Returns the molecule with the bonds of its SMILES, and a note; each hydrogen is bonded to the nearest heavy atom.

    The heavy atoms of the SMILES are expected in the order of the coordinates. If they are not, they are matched by
    their connections; if that fails too, the bonds are taken from the distances. The note tells which, and is empty if
    the order fits. Raises MoleculeError.
    """
    skeleton = Chem.MolFromSmiles(smiles)
    if skeleton is None:
        raise MoleculeError(f"has a SMILES that does not parse: {smiles!r}")
    try:
        return _on_skeleton(skeleton, numbers, positions, in_order=True), ""
    except MoleculeError as error:
        reason = f"{smiles} does not fit the coordinates in their order: it {error}"
    try:
        molecule = _on_skeleton(skeleton, numbers, positions, in_order=False)
    except MoleculeError as error:
        note = f"{reason}; in any order it {error}; bonds were taken from the distances"
        return bonded_by_distance(numbers, positions, Chem.GetFormalCharge(skeleton)), note
    return molecule, f"{reason}; atoms were matched by their bonds"


def _on_skeleton(skeleton: Chem.Mol, numbers: Numbers, positions: Positions, in_order: bool) -> Molecule:
    """Returns the molecule with the heavy atoms' bonds of `skeleton`. Raises MoleculeError if these do not fit."""
    heavy, hydrogens = np.flatnonzero(numbers > 1), np.flatnonzero(numbers == 1)
    expected_numbers = np.array([atom.GetAtomicNum() for atom in skeleton.GetAtoms()], np.uint8)
    if sorted(expected_numbers) != sorted(numbers[heavy]) or not len(heavy):
        raise MoleculeError("has other atoms")
    distances = np.linalg.norm(positions[hydrogens, None] - positions[heavy], axis=-1)
    parents = distances.argmin(1)
    hs = np.bincount(parents, minlength=len(heavy))
    expected_hs = np.array([atom.GetTotalNumHs() for atom in skeleton.GetAtoms()])
    near = _near(numbers[heavy], positions[heavy])
    mol = Chem.Mol(skeleton)
    kekulize(mol)
    table = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), ORDERS[bond.GetBondType()]) for bond in mol.GetBonds()]
    begin, end, orders = np.array(table, np.int32).reshape(-1, 3).T
    if in_order:
        match = np.arange(len(heavy))
    else:
        match = _isomorphism(expected_numbers, expected_hs, begin, end, numbers[heavy], hs, near)
    if (expected_numbers != numbers[heavy][match]).any():
        raise MoleculeError("has the elements in another order")
    if (expected_hs != hs[match]).any():
        raise MoleculeError("has its hydrogens at other atoms")
    if not near[match[begin], match[end]].all():
        raise MoleculeError("has a bond between atoms that are too far apart")
    bonds = np.concatenate([heavy[match[np.stack([begin, end], 1)]], np.stack([heavy[parents], hydrogens], 1)])
    singles = np.ones(len(hydrogens), np.uint8)
    return checked(Molecule(numbers, positions, bonds.astype(np.int32), np.append(orders.astype(np.uint8), singles)))


def _near(numbers: Numbers, positions: Positions) -> Bool[np.ndarray, "atoms atoms"]:
    """Returns which pairs of atoms are near enough for a bond."""
    table = Chem.GetPeriodicTable()
    radii = np.array([table.GetRcovalent(int(number)) for number in numbers])
    distances = np.linalg.norm(positions[:, None] - positions, axis=-1)
    return (distances <= STRETCH * (radii[:, None] + radii)) & ~np.eye(len(radii), dtype=bool)


def _isomorphism(
    expected_numbers: Numbers,
    expected_hs: Int[np.ndarray, " atoms"],
    begin: Int[np.ndarray, " bonds"],
    end: Int[np.ndarray, " bonds"],
    numbers: Numbers,
    hs: Int[np.ndarray, " atoms"],
    near: Bool[np.ndarray, "atoms atoms"],
) -> Int[np.ndarray, " atoms"]:
    """Returns the atom with coordinates of each atom of the SMILES: same element, hydrogens and connections."""
    pattern = _labelled_graph(expected_numbers, expected_hs, zip(begin.tolist(), end.tolist(), strict=True))
    target = _labelled_graph(numbers, hs, zip(*(ends.tolist() for ends in np.triu(near).nonzero()), strict=True))
    match = target.GetSubstructMatch(pattern)
    if not match or target.GetNumBonds() != pattern.GetNumBonds():
        raise MoleculeError("has other bonds")
    return np.array(match)


def _labelled_graph(
    numbers: Numbers, hydrogens: Int[np.ndarray, " atoms"], bonds: Iterable[tuple[int, int]]
) -> Chem.Mol:
    """Atoms joined by single bonds; the isotope encodes the number of hydrogens, so that matching compares it."""
    mol = Chem.RWMol()
    for number, count in zip(numbers.tolist(), hydrogens.tolist(), strict=True):
        atom = Chem.Atom(number)
        atom.SetIsotope(count + 1)
        mol.AddAtom(atom)
    for begin, end in bonds:
        mol.AddBond(begin, end, Chem.BondType.SINGLE)
    return mol
