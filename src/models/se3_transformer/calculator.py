"""An ASE calculator: the energy that a network was trained for, and the forces that are its gradient."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from ase.calculators.calculator import Calculator, all_changes  # type: ignore[import-not-found]
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.errors import UserError


class MoleculeCalculator(Calculator):
    """Energy in eV and forces in eV per angstrom of one molecule; `MoleculePredictor.calculator` makes it.

    The molecule keeps its bonds and edges, whatever its positions, so that the energy is smooth.

    Args:
        numbers: atomic numbers of the molecule.
        batch: with the molecule alone.
        energy: the energy of every molecule of a batch, differentiable in its positions.
        factor: electronvolts in a unit of `energy`.
    """

    implemented_properties = ["energy", "free_energy", "forces"]  # noqa: RUF012  # as ASE declares it

    def __init__(
        self, numbers: np.ndarray, batch: GraphBatch, energy: Callable[[GraphBatch], Tensor], factor: float
    ) -> None:
        super().__init__()
        self.numbers, self.batch, self.energy, self.factor = numbers, batch, energy, factor

    def calculate(
        self,
        atoms: Any = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Computes energy and forces. Raises UserError for another molecule and for a periodic one."""
        super().calculate(atoms, properties, system_changes)
        assert self.atoms is not None
        if self.atoms.pbc.any():
            raise UserError(f"{self.atoms.symbols} is periodic, which its calculator is not; set pbc = False")
        if not np.array_equal(self.atoms.numbers, self.numbers):
            raise UserError(f"{self.atoms.symbols} is not the calculator's molecule; make a calculator of its own")
        batch = self.batch
        with torch.enable_grad():
            positions = torch.tensor(self.atoms.positions, dtype=torch.float64, device=batch.positions.device)
            positions.requires_grad_()
            padding = batch.positions[len(positions) :].to(positions.dtype)
            energy = self.energy(batch._replace(positions=torch.cat([positions, padding])))[0]
            (gradient,) = torch.autograd.grad(energy, positions)
        value = energy.item() * self.factor
        self.results = {
            "energy": value,
            "free_energy": value,  # what ASE's optimisers ask for
            "forces": -gradient.cpu().numpy() * self.factor,
        }
