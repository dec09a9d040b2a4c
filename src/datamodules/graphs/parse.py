"""Parses one molecule of a person's file, in worker processes."""

import re
from typing import Any

import numpy as np
from jaxtyping import Float
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers
from rdkit.Chem.MolStandardize import rdMolStandardize

from src.datamodules.graphs.bonds import mol_by_distance, molecule_of
from src.datamodules.graphs.data import Molecule, MoleculeError
from src.datamodules.graphs.groups import graph_of, scaffold_of
from src.datamodules.graphs.periodic import whole
from src.datamodules.graphs.prepare import Outcome
from src.datamodules.graphs.records import plain_number
from src.datamodules.graphs.xyz import Frame
from src.molecules.encode import LONGEST_SMILES

SEED = 0xE3  # of the coordinates generated for SMILES
RELAX_STEPS = 1000
MOST_ATOMS = 1000  # of a molecule with coordinates: the search for bonds compares all pairs
MOST_EMBEDDED = 200  # atoms, hydrogens included, of a molecule whose coordinates are generated: 152 take 1.4 s
EMBEDDING_S = 3  # of each of the two attempts, about
HEAVY_HYDROGENS = {"D", "T"}
KEEP = "datamodule.source.keep_largest_fragment=true"


def parse(content: tuple[str, Any]) -> Outcome:
    """Returns the molecule of (format, text). Raises MoleculeError."""
    form, text = content
    try:
        return FORMATS[form](text)
    except MoleculeError:
        raise
    except (RuntimeError, ValueError, OverflowError) as error:  # of RDKit, which says it in many lines
        raise MoleculeError("cannot be read as a molecule: its record is damaged") from error


def from_xyz(frame: Frame) -> Outcome:
    """Returns the molecule of a frame, with bonds from the distances; a periodic one is made whole first."""
    check_size(len(frame.lines))
    changes: dict[str, None] = {}
    symbol_at, position_at = frame.columns
    numbers, rows = [], []
    for atom, line in enumerate(frame.lines, 1):
        words = line.split()
        coordinates = [plain_number(word) for word in words[position_at : position_at + 3]]
        symbol = words[symbol_at] if len(words) > symbol_at else ""
        number = element(symbol)
        if not number or None in coordinates or len(coordinates) < 3:
            if number and NOT_FINITE & {word.lower().lstrip("+-") for word in words}:
                raise MoleculeError(f"has no finite coordinates for atom {atom}")
            advice = "" if number else f" ({symbol!r} is no element: write Cl, not CL, or its atomic number)"
            raise MoleculeError(
                f"has no element and coordinates for atom {atom}: {line!r}{advice}", "has an unreadable atom"
            )
        if symbol in HEAVY_HYDROGENS:
            changes["isotopes of hydrogen read as H"] = None
        numbers.append(number)
        rows.append(coordinates)
    positions = np.array(rows, np.float64).reshape(-1, 3) * frame.scale
    if frame.scale != 1:
        changes[f"coordinates converted from {frame.unit} to angstrom"] = None
    if frame.box is not None and len(numbers):
        positions, is_moved = whole(np.array(numbers), positions, frame.box)
        changes["periodic box left out, since molecules are read without their images"] = None
        if is_moved:
            changes["made whole across the border of its periodic box"] = None
    bonded = mol_by_distance(np.array(numbers, np.uint8), positions, frame.charge)
    if not isinstance(bonded, Molecule):
        changes["bonds taken from the distances"] = None
        if frame.is_assumed:
            changes[f"charge {frame.charge} assumed"] = None
    return outcome(bonded, tuple(changes), frame.box)


def from_sdf(block: str) -> Outcome:
    """Returns a molecule from a record of an .sdf file; missing hydrogens are added."""
    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(block, sanitize=False, removeHs=False)
        if mol is None:
            counts = (block.split("\n", 4) + [""] * 4)[3].strip()
            raise MoleculeError(
                "cannot be read as a molecule: its atoms or bonds do not fit its counts line or cannot be read; line 4 "
                f"is {counts!r}",
                "cannot be read as a molecule",
            )
        check_size(mol.GetNumAtoms())
        problems = Chem.DetectChemistryProblems(mol)
        mol = Chem.MolFromMolBlock(block, removeHs=False)
    if mol is None:
        reason = re.sub(r"\s+", " ", problems[0].Message()) if problems else "its record is damaged"
        raise MoleculeError(f"cannot be read as a molecule: {reason}", "has an atom with too many bonds, or the like")
    if not mol.GetNumConformers():
        raise MoleculeError("has no coordinates")
    if not mol.GetConformer().Is3D():
        raise MoleculeError("has 2D coordinates: give 3D ones, or write 3D in columns 21 and 22 of line 2")
    full = Chem.AddHs(mol, addCoords=True)
    return outcome(full, ("hydrogens added",) * (full.GetNumAtoms() > mol.GetNumAtoms()))


def from_smiles(smiles: str, keeps_largest: bool = False) -> Outcome:
    """Returns a molecule with hydrogens and coordinates that RDKit generates, always the same.

    Several fragments are refused unless `keeps_largest`.
    """
    if len(smiles) > LONGEST_SMILES:
        raise MoleculeError(f"is longer than {LONGEST_SMILES:,} characters")
    parsed = Chem.MolFromSmiles(smiles)
    if parsed is None or not parsed.GetNumAtoms():
        raise MoleculeError("does not parse")
    changes = ["hydrogens and coordinates generated"]
    fragments = len(Chem.GetMolFrags(parsed))
    if fragments > 1 and not keeps_largest:
        raise MoleculeError(
            f"has {fragments} fragments, whose coordinates cannot be generated together: leave one, or {KEEP}",
            "has several fragments",
        )
    if fragments > 1:
        with rdBase.BlockLogs():
            parsed = rdMolStandardize.LargestFragmentChooser().choose(parsed)
        changes.append("largest fragment kept")
    mol = Chem.AddHs(parsed)
    if mol.GetNumAtoms() > MOST_EMBEDDED:
        raise MoleculeError(
            f"has {mol.GetNumAtoms():,} atoms, and coordinates are generated for at most {MOST_EMBEDDED}: "
            "give its coordinates in an .xyz or .sdf file",
            f"has more than {MOST_EMBEDDED} atoms",
        )
    parameters = rdDistGeom.ETKDGv3()
    parameters.randomSeed, parameters.timeout = SEED, EMBEDDING_S
    if rdDistGeom.EmbedMolecule(mol, parameters) != 0:
        parameters.useRandomCoords = True
        if rdDistGeom.EmbedMolecule(mol, parameters) != 0:
            raise MoleculeError(
                f"cannot be embedded by RDKit, which had {2 * EMBEDDING_S} s: give its coordinates in an .xyz or .sdf "
                "file",
                "cannot be embedded by RDKit",
            )
    if rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        rdForceFieldHelpers.MMFFOptimizeMolecule(mol, maxIters=RELAX_STEPS)
    return outcome(mol, tuple(changes))


def outcome(
    bonded: Chem.Mol | Molecule, changes: tuple[str, ...], box: Float[np.ndarray, "3 3"] | None = None
) -> Outcome:
    """Returns the molecule with its group and scaffold."""
    if isinstance(bonded, Molecule):
        return Outcome(bonded, changes=changes, group=graph_of(bonded), box=box)
    scaffold = scaffold_of(bonded)  # first: the conversion makes aromatic bonds single and double ones
    molecule = molecule_of(bonded)
    return Outcome(molecule, changes=changes, group=graph_of(molecule), scaffold=scaffold, box=box)


def element(symbol: str) -> int:
    """Returns the atomic number of a symbol or a number, 0 for what is no element."""
    if re.fullmatch("[0-9]{1,3}", symbol):
        return int(symbol) if int(symbol) <= 118 else 0
    if symbol in HEAVY_HYDROGENS:
        return 1
    return SYMBOLS.get(symbol, 0)


def check_size(atoms: int) -> None:
    """Raises MoleculeError for more atoms than are compared pair by pair."""
    if atoms > MOST_ATOMS:
        raise MoleculeError(
            f"has {atoms:,} atoms; at most {MOST_ATOMS:,} are read", f"has more than {MOST_ATOMS:,} atoms"
        )


NOT_FINITE = {"nan", "inf", "infinity"}
SYMBOLS = {Chem.GetPeriodicTable().GetElementSymbol(number): number for number in range(1, 119)}
FORMATS = {"xyz": from_xyz, "sdf": from_sdf, "smiles": lambda content: from_smiles(*content)}
