"""The atom classes and the largest molecule of each data set."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import UInt8
from rdkit.Chem import GetPeriodicTable

from src.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """The atom classes of a data set: class k has atomic number `atomic_numbers[k]`; number 0 means "no atom"."""

    name: str = field(compare=False)
    atomic_numbers: tuple[int, ...]
    max_atoms: int

    @property
    def num_classes(self) -> int:
        return len(self.atomic_numbers)

    @property
    def elements(self) -> list[str]:
        """The symbols of the classes but "no atom"."""
        return [GetPeriodicTable().GetElementSymbol(number) for number in self.atomic_numbers[1:]]

    @property
    def class_of(self) -> UInt8[np.ndarray, "256"]:
        """The class of each atomic number; 0 for atoms outside the vocabulary."""
        classes = np.zeros(256, np.uint8)
        classes[list(self.atomic_numbers)] = range(self.num_classes)
        return classes

    def up_to(self, max_atoms: int) -> "Vocabulary":
        """Returns the same atom classes for molecules of at most `max_atoms` atoms. Raises UserError for too many."""
        if not 1 <= max_atoms <= self.max_atoms:
            raise UserError(f"datamodule.source.max_atoms={max_atoms}: give 1 to {self.max_atoms}, as {self.name} has")
        return replace(self, max_atoms=max_atoms)


def of_elements(name: str, symbols: Iterable[str], max_atoms: int) -> Vocabulary:
    """Returns the vocabulary of these elements, by atomic number. Raises UserError for no element, H or an unknown one.

    Hydrogen is left to the valences.
    """
    return Vocabulary(name, (0, *sorted(set(map(number_of, symbols)))), max_atoms)


def number_of(symbol: str) -> int:
    """Returns an element's atomic number. Raises UserError for a symbol that is none, and for hydrogen."""
    try:
        number = GetPeriodicTable().GetAtomicNumber(str(symbol))
    except RuntimeError:
        number = -1
    if number < 2:
        raise UserError(f"element {symbol!r}: give symbols such as C, N or Si; hydrogen is left to the valences")
    return number


ZINC250K = Vocabulary("zinc250k", (0, 6, 7, 8, 9, 15, 16, 17, 35, 53), max_atoms=38)
QM9 = Vocabulary("qm9_molecules", (0, 6, 7, 8, 9), max_atoms=9)
VOCABULARIES = (ZINC250K, QM9)
