"""Parses one molecule of a user's file, in worker processes."""

from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from src.datamodules.graphs.bonds import bonded_by_distance, molecule_of
from src.datamodules.graphs.data import Molecule, MoleculeError
from src.molecules.encode import LONGEST_SMILES

SEED = 0xE3  # of the coordinates generated for SMILES
RELAX_STEPS = 1000
MOST_ATOMS = 1000  # of a molecule with coordinates: the search for bonds compares all pairs
MOST_EMBEDDED = 200  # atoms, hydrogens included, of a molecule whose coordinates are generated: 152 take 1.4 s
EMBEDDING_S = 10  # of each of the two attempts, about


def parse(content: tuple[str, Any]) -> tuple[Molecule, str]:
    """Returns the molecule of (format, text), and an empty note. Raises MoleculeError."""
    form, text = content
    try:
        molecule = FORMATS[form](text)
    except MoleculeError:
        raise
    except (RuntimeError, ValueError, OverflowError) as error:  # of RDKit, which says it in many lines
        raise MoleculeError("cannot be read as a molecule: its record is damaged") from error
    return molecule, ""


def from_xyz(content: tuple[list[str], str, int]) -> Molecule:
    """Returns a molecule from the atoms' lines, an extended file's `Properties` ("" if plain), and the charge."""
    lines, properties, charge = content
    check_size(len(lines))
    symbol_at, position_at = _columns(properties)
    numbers, positions = [], []
    for atom, line in enumerate(lines, 1):
        words = line.split()
        try:
            symbol = words[symbol_at]
            number = int(symbol) if symbol.isdigit() else Chem.GetPeriodicTable().GetAtomicNumber(symbol)
            positions.append([float(word) for word in words[position_at : position_at + 3]])
        except (IndexError, RuntimeError, ValueError) as error:
            raise MoleculeError(f"has no element and coordinates for atom {atom}: {line!r}") from error
        if len(positions[-1]) < 3 or not 0 < number < 119:
            raise MoleculeError(f"has no element and coordinates for atom {atom}: {line!r}")
        numbers.append(number)
    return bonded_by_distance(np.array(numbers, np.uint8), np.array(positions).reshape(-1, 3), charge)


def from_sdf(block: str) -> Molecule:
    """Returns a molecule from a record of an .sdf file; missing hydrogens are added."""
    mol = Chem.MolFromMolBlock(block, removeHs=False)
    if mol is None:
        raise MoleculeError("cannot be read as a molecule: its record is damaged, or an atom has too many bonds")
    check_size(mol.GetNumAtoms())
    if not mol.GetNumConformers():
        raise MoleculeError("has no coordinates")
    if not mol.GetConformer().Is3D():
        raise MoleculeError("has 2D coordinates: give 3D ones, or write 3D in columns 21 and 22 of line 2")
    return molecule_of(Chem.AddHs(mol, addCoords=True))


def from_smiles(smiles: str) -> Molecule:
    """Returns a molecule from a SMILES, with hydrogens and coordinates that RDKit generates, always the same."""
    if len(smiles) > LONGEST_SMILES:
        raise MoleculeError(f"is longer than {LONGEST_SMILES:,} characters")
    parsed = Chem.MolFromSmiles(smiles)
    if parsed is None or not parsed.GetNumAtoms():
        raise MoleculeError("does not parse")
    mol = Chem.AddHs(parsed)
    if mol.GetNumAtoms() > MOST_EMBEDDED:
        raise MoleculeError(
            f"has {mol.GetNumAtoms():,} atoms, and coordinates are generated for at most {MOST_EMBEDDED}: "
            "give its coordinates in an .xyz or .sdf file"
        )
    parameters = rdDistGeom.ETKDGv3()
    parameters.randomSeed, parameters.timeout = SEED, EMBEDDING_S
    if rdDistGeom.EmbedMolecule(mol, parameters) != 0:
        parameters.useRandomCoords = True
        if rdDistGeom.EmbedMolecule(mol, parameters) != 0:
            raise MoleculeError("cannot be embedded by RDKit: give its coordinates in an .xyz or .sdf file")
    if rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        rdForceFieldHelpers.MMFFOptimizeMolecule(mol, maxIters=RELAX_STEPS)
    return molecule_of(mol)


def check_size(atoms: int) -> None:
    """Raises MoleculeError for more atoms than are compared pair by pair."""
    if atoms > MOST_ATOMS:
        raise MoleculeError(f"has {atoms:,} atoms; at most {MOST_ATOMS:,} are read")


def _columns(properties: str) -> tuple[int, int]:
    """Returns the columns of element and position in an extended .xyz file, from species:S:1:pos:R:3 for example."""
    if not properties:
        return 0, 1
    start, starts = 0, {}
    fields = properties.split(":")
    for name, width in zip(fields[::3], fields[2::3], strict=False):
        starts[name] = start
        start += int(width) if width.isdigit() else 1
    if not {"species", "pos"} <= set(starts):
        raise MoleculeError(f"has no species and pos in its Properties={properties}")
    return starts["species"], starts["pos"]


FORMATS = {"xyz": from_xyz, "sdf": from_sdf, "smiles": from_smiles}
