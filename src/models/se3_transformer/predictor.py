"""One property of molecules in space."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rdkit import Chem
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.datamodules.graphs.bonds import mol_by_distance
from src.datamodules.graphs.data import Arrays, GraphData, Molecule, MoleculeError, checked
from src.datamodules.graphs.datamodule import GraphDataModule
from src.datamodules.graphs.files import entries_of
from src.datamodules.graphs.parse import from_smiles, outcome, parse
from src.errors import UserError
from src.models.se3_transformer.network import SE3TransformerPooled
from src.training.predictor import Inference, Predictor, Values

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
    return outcome(mol_by_distance(np.asarray(numbers, np.uint8), np.asarray(positions, np.float64), 0), ()).molecule


def valid(name: str, part: Callable[[], Molecule]) -> Molecule:
    try:
        return checked(part())
    except MoleculeError as error:
        raise UserError(f"{name} {error}") from None
