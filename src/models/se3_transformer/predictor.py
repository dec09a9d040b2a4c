"""One property of molecules in space."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.bonds import bonded_by_distance
from src.datamodules.graphs.data import Arrays, GraphData, Molecule, MoleculeError, checked
from src.datamodules.graphs.datamodule import GraphDataModule
from src.datamodules.graphs.files import entries_of
from src.datamodules.graphs.parse import from_smiles, outcome, parse
from src.errors import UserError
from src.models.se3_transformer.network import SE3TransformerPooled
from src.training.predictor import Inference, Predictor, Values, in_precision

EV = {"eV": 1.0, "meV": 1e-3, "hartree": 27.211386245988, "kcal/mol": 0.04336411530877, "kJ/mol": 0.01036426965627}
NO_ENERGIES = "homo", "lumo", "gap", "zpve"  # in eV too, but atoms do not move along their gradients
PERIODIC = "is periodic, and neighbours across the border of its cell would be missed: set pbc = False"
FORMS = (
    "give SMILES, RDKit molecules with coordinates, or objects with numbers and positions in angstrom, as ASE's Atoms"
)


class MoleculePredictor(Predictor[Any, Values]):
    """Called with molecules it returns the property that the network was trained for, in its unit.

    Molecules are the path of an .xyz, .sdf, .mol or .smi file, or a sequence of SMILES (which get RDKit's coordinates),
    RDKit molecules with coordinates, and objects with `numbers` and `positions` in angstrom, such as ASE's Atoms.

    Args:
        predict: a value for every molecule of a batch, padding included, in natural units.
        datamodule: instantiates the configured one; its edges are those of the training.
        elements: that the network knows.
        quantity: name and unit of what is predicted.
    """

    def __init__(
        self,
        network: SE3TransformerPooled,
        predict: Callable[[GraphBatch], Tensor],
        elements: Sequence[str],
        quantity: tuple[str, str],
        device: torch.device,
        inference: Inference,
    ) -> None:
        super().__init__(device, inference)
        self.network, self.predict, self.elements, self.quantity = network, predict, list(elements), quantity

    def predicted(self, inputs: Any) -> Values:
        if isinstance(inputs, Path) or (isinstance(inputs, str) and Path(inputs).is_file()):
            entries = entries_of(Path(inputs))
            names, parts = (
                entries.names,
                [lambda content=content: parse(content).molecule for content in entries.contents],
            )
        else:
            items = [inputs] if isinstance(inputs, str) or hasattr(inputs, "positions") else list(inputs)
            names = [item if isinstance(item, str) else f"molecule {number}" for number, item in enumerate(items)]
            parts = [lambda item=item: molecule_of(item) for item in items]
        molecules = [valid(name, part) for name, part in zip(names, parts, strict=True)]
        if not molecules:
            return Values(*self.quantity, np.zeros(0))
        datamodule = self.bound(molecules, names)
        loader = datamodule.loader("all", batch_size=min(self.inference.batch_size, len(molecules)))
        values = [self.predict(batch).cpu().numpy()[: batch.count] for batch in loader]
        return Values(*self.quantity, np.concatenate(values))

    def calculator(self, molecule: Any, unit: str | None = None) -> Any:
        """Returns an ASE calculator of a molecule's energy and forces, with the bonds that it has now.

        Args:
            molecule: as for a prediction, its atoms in the order of those that the calculator is given to.
            unit: of the energy, where the training's data did not say it: a key of EV.

        Raises UserError for what is no energy, for edges within a radius, for a molecule that a prediction refuses, and
        without ASE.
        """
        factor = self.electronvolts(unit)
        if self.inference.datamodule().edges.kind == "radius":
            raise UserError(
                "the network was trained with datamodule.edges.kind=radius, and its energy jumps where two atoms come "
                "within the cutoff: it has no forces; train it with bonds or full"
            )
        if find_spec("ase") is None:
            raise UserError("an ASE calculator needs the package ase; install it with pip install 'reprise[ase]'")
        from src.models.se3_transformer.calculator import MoleculeCalculator

        name = molecule if isinstance(molecule, str) else str(getattr(molecule, "symbols", "the molecule"))
        atoms = valid(name, lambda: molecule_of(molecule))
        batch = next(iter(self.bound([atoms], [name]).loader("all", batch_size=1)))
        return MoleculeCalculator(atoms.numbers, batch, self.differentiable, factor)

    def electronvolts(self, unit: str | None) -> float:
        """Returns the electronvolts in a unit of the predicted energy. Raises UserError for what is no energy."""
        name, of_the_data = self.quantity
        if name in NO_ENERGIES:
            raise UserError(f"{name} is not the energy of a molecule: its gradient is no force; train on U0, say")
        if of_the_data and unit not in (None, of_the_data):
            raise UserError(f"{name} is in {of_the_data}; leave out unit={unit}")
        unit = of_the_data or unit or ""
        factor = {symbol.lower(): value for symbol, value in EV.items()}.get(unit.lower())
        if factor is None:
            what = f"in {unit}, which is no unit of energy" if unit else "of no unit that is known"
            advice = "" if unit else "; give calculator(molecule, unit=UNIT)"
            raise UserError(f"{name} is {what}{advice}; expected one of {', '.join(EV)}")
        return factor

    def differentiable(self, batch: GraphBatch) -> Tensor:
        """Returns what `predict` does, in the configured precision, with a gradient."""
        with in_precision(self.device, self.inference.precision, gradients=True):
            return self.predict(batch)

    def bound(self, molecules: Sequence[Molecule], names: list[str]) -> GraphDataModule:
        """Returns a datamodule of these molecules. Raises UserError for one without edges or with unknown elements."""
        rows, none = np.arange(len(molecules)), np.arange(0)
        targets, splits = np.zeros((len(molecules), 0)), {"train": none, "val": none, "test": rows, "all": rows}
        data = GraphData(Arrays.of(molecules), names, targets, {}, splits, False, Path())
        datamodule: GraphDataModule = self.inference.datamodule()
        datamodule.source = lambda _: data
        datamodule.task, datamodule.given_unit = None, None
        datamodule.device, datamodule.elements = self.device, self.elements
        datamodule.setup("predict")
        return datamodule


def molecule_of(item: Any) -> Molecule:
    """Returns one molecule with its bonds. Raises MoleculeError."""
    if isinstance(item, str):
        return from_smiles(item).molecule
    if isinstance(item, Chem.Mol):
        if not item.GetNumConformers() or not item.GetConformer().Is3D():
            raise MoleculeError("has no 3D coordinates; embed it first, or give its SMILES")
        return outcome(Chem.AddHs(item, addCoords=True), ()).molecule
    numbers, positions = getattr(item, "numbers", None), getattr(item, "positions", None)
    if numbers is None or positions is None:
        raise MoleculeError(f"is no molecule but {type(item).__name__}; {FORMS}")
    if np.any(getattr(item, "pbc", False)):
        raise MoleculeError(PERIODIC)
    return bonded_by_distance(np.asarray(numbers, np.uint8), np.asarray(positions, np.float64))


def valid(name: str, part: Callable[[], Molecule]) -> Molecule:
    try:
        return checked(part())
    except MoleculeError as error:
        raise UserError(f"{name} {error}") from None
