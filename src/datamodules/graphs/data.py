"""Molecules with coordinates, bonds and targets as flat arrays, and one molecule of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from rdkit.Chem import GetPeriodicTable

from src.errors import UserError
from src.measure.reading import Reading

ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}  # of QM9, and of the published features
LAST = 118  # atomic number of the last element
CLOSEST = 1e-3  # angstrom; nearer atoms coincide
FARTHEST = 1e5  # angstrom from the origin, of an atom
NUMBERS = re.compile(r"\b[0-9][0-9,]*(?:\.[0-9]+)?\b")
BLOCK = 256  # atoms compared with all others at a time


class MoleculeError(ValueError):
    """A molecule that cannot be used, and why; the code that catches it adds the molecule's name.

    `kind` is the reason without this molecule's values, by which molecules are counted.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind or NUMBERS.sub("N", message.split(":")[0])


class Molecule(NamedTuple):
    """One molecule: every bond once, as (smaller, larger) atom number, ascending."""

    numbers: UInt8[np.ndarray, " atoms"]  # atomic numbers
    positions: Float[np.ndarray, "atoms 3"]  # angstrom
    bonds: Int[np.ndarray, "bonds 2"]
    orders: UInt8[np.ndarray, " bonds"]  # 1 single, 2 double, 3 triple, 4 aromatic


class Arrays(NamedTuple):
    """Many molecules, concatenated; the fields are the files of a prepared folder."""

    num_atoms: Int[np.ndarray, " molecules"]
    numbers: UInt8[np.ndarray, " atoms"]
    positions: Float[np.ndarray, "atoms 3"]
    num_bonds: Int[np.ndarray, " molecules"]
    bonds: Int[np.ndarray, "bonds 2"]  # atom numbers within the molecule
    orders: UInt8[np.ndarray, " bonds"]

    @staticmethod
    def of(molecules: Iterable[Molecule]) -> "Arrays":
        """Concatenates molecules."""
        empty = Molecule(
            np.zeros(0, np.uint8), np.zeros((0, 3), np.float32), np.zeros((0, 2), np.int32), np.zeros(0, np.uint8)
        )
        molecules = list(molecules)
        numbers, positions, bonds, orders = (np.concatenate(field) for field in zip(empty, *molecules, strict=True))
        return Arrays(
            num_atoms=np.array([len(molecule.numbers) for molecule in molecules], np.int32),
            numbers=numbers.astype(np.uint8),
            positions=positions.astype(np.float32),
            num_bonds=np.array([len(molecule.bonds) for molecule in molecules], np.int32),
            bonds=bonds.astype(np.int32),
            orders=orders.astype(np.uint8),
        )

    @staticmethod
    def joined(parts: Iterable["Arrays"]) -> "Arrays":
        """Concatenates several of these."""
        return Arrays(*(np.concatenate(field) for field in zip(Arrays.of([]), *parts, strict=True)))

    def molecule(self, row: int) -> Molecule:
        """Returns the molecule in `row`."""
        atoms, bonds = (
            slice(int(sizes[:row].sum()), int(sizes[: row + 1].sum())) for sizes in (self.num_atoms, self.num_bonds)
        )
        return Molecule(self.numbers[atoms], self.positions[atoms], self.bonds[bonds], self.orders[bonds])


@dataclass(frozen=True)
class GraphData:
    """Prepared molecules, their targets and their split.

    Attributes:
        arrays: atoms and bonds.
        names: of the molecules, in messages and predictions.
        targets: in the units of `units`; NaN if unknown.
        units: of each target by its name, in the order of the columns; "" if unknown.
        splits: rows of `train`, `val`, `test` and `all`.
        skip_bad: leave out molecules without edges rather than refuse them.
        folder: of the arrays.
        reading: the report of what became of a person's own file.
        changed: whether a molecule of such a file was kept otherwise than it was written.
        boxes: lattice vectors of each molecule, zero where not periodic; None if none is periodic.
    """

    arrays: Arrays
    names: list[str]
    targets: Float[np.ndarray, "molecules targets"]
    units: Mapping[str, str]
    splits: Mapping[str, Int[np.ndarray, " rows"]]
    skip_bad: bool
    folder: Path
    reading: Reading | None = None
    changed: Bool[np.ndarray, " molecules"] | None = None
    boxes: Float[np.ndarray, "molecules 3 3"] | None = None

    def target(self, task: str | None) -> Float[np.ndarray, " molecules"]:
        """Returns the values of one target; NaN for all molecules if `task` is None or the data has no targets.

        Raises UserError for an unknown target.
        """
        if task is None or not self.units:
            return np.full(len(self.names), np.nan)
        if task not in self.units:
            notes = [] if self.reading is None else self.reading.notes
            reason = "".join(f" ({note})" for note in notes if f"{task} '" in note)
            raise UserError(
                f"datamodule.task={task}: there is no such target{reason}; choose from {', '.join(self.units)}, or null"
            )
        return self.targets[:, list(self.units).index(task)]


def symbol_of(number: int) -> str:
    return GetPeriodicTable().GetElementSymbol(int(number))


def number_of(symbol: str) -> int:
    """Returns an element's atomic number. Raises UserError for a symbol that is none."""
    try:
        return GetPeriodicTable().GetAtomicNumber(str(symbol))
    except RuntimeError:
        raise UserError(f"element {symbol!r} is unknown: give symbols such as H, C or Si") from None


def checked(molecule: Molecule) -> Molecule:
    """Returns the molecule with its bonds sorted. Raises MoleculeError if it is not a valid graph."""
    numbers, positions, bonds, orders = molecule
    if not len(numbers):
        raise MoleculeError("has no atoms")
    unknown = (numbers < 1) | (numbers > LAST)
    if unknown.any():
        atom = int(unknown.argmax())
        raise MoleculeError(f"has an atom of no element: atom {atom + 1} has atomic number {numbers[atom]}")
    wrong = ~np.isfinite(positions).all(1)
    if wrong.any():
        raise MoleculeError(f"has no finite coordinates for atom {int(wrong.argmax()) + 1}")
    far = (np.abs(positions) >= FARTHEST).any(1)
    if far.any():
        raise MoleculeError(f"has atom {int(far.argmax()) + 1} more than {FARTHEST:,.0f} angstrom from the origin")
    if pair := _coincident(positions):
        raise MoleculeError(f"has atoms {pair[0] + 1} and {pair[1] + 1} at the same position")
    ordered = np.sort(bonds, axis=1)
    if ((ordered < 0) | (ordered >= len(numbers))).any() or (ordered[:, 0] == ordered[:, 1]).any():
        raise MoleculeError(f"has a bond that does not join two of its {len(numbers)} atoms")
    by_atoms = np.lexsort((ordered[:, 1], ordered[:, 0]))
    if len(np.unique(ordered, axis=0)) < len(ordered):
        raise MoleculeError("has two bonds between the same atoms")
    return Molecule(numbers, positions, ordered[by_atoms], orders[by_atoms])


def _coincident(positions: Float[np.ndarray, "atoms 3"]) -> tuple[int, int] | None:
    """Returns the first two atoms at the same position, if any."""
    rounded = positions.astype(np.float32).astype(np.float64)  # as stored
    for start in range(0, len(rounded), BLOCK):
        block = rounded[start : start + BLOCK]
        near = ((block[:, None] - rounded) ** 2).sum(-1) < CLOSEST**2
        first, second = np.nonzero(np.triu(near, start + 1))
        if len(first):
            return start + int(first[0]), int(second[0])
    return None
