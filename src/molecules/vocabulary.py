"""The atom classes and the largest molecule of each data set."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8

from src.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """The atom classes of a data set: class k has atomic number `atomic_numbers[k]`; number 0 means "no atom"."""

    name: str
    atomic_numbers: tuple[int, ...]
    max_atoms: int

    @property
    def num_classes(self) -> int:
        return len(self.atomic_numbers)

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


ZINC250K = Vocabulary("zinc250k", (0, 6, 7, 8, 9, 15, 16, 17, 35, 53), max_atoms=38)
QM9 = Vocabulary("qm9_molecules", (0, 6, 7, 8, 9), max_atoms=9)
VOCABULARIES = (ZINC250K, QM9)
