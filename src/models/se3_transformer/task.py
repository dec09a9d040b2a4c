"""The SE(3)-Transformer as a task: one property of a molecule, judged by its mean absolute error in natural units."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed

from src.batches.molecular_graphs import Graph, GraphBatch
from src.config.ranges import NotNegative, Text
from src.datamodules.graphs.data import ELEMENTS, number_of
from src.datamodules.graphs.datamodule import GraphDataModule
from src.datamodules.graphs.loader import GraphLoader, features_of
from src.errors import UserError
from src.measure.clock import Clock
from src.measure.roofline import Cost
from src.models.se3_transformer import fast
from src.models.se3_transformer.cost import Molecule, cost
from src.models.se3_transformer.export import exported, mean_of_images
from src.models.se3_transformer.network import SE3TransformerPooled
from src.models.se3_transformer.predict import Quantity, predict_molecules
from src.models.se3_transformer.predictor import MoleculePredictor
from src.training.checkpoints import load_weights, read_checkpoint
from src.training.export import Export
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import Inference
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Task

EXAMPLE = Molecule(nodes=18, edges=36)  # about the mean molecule of QM9 with its bonds as edges


class SE3TransformerTask(Task):
    """Learns one property of molecules; a checkpoint predicts it in its natural unit.

    Evaluations of a run are named `homo_mae_ev` (validation), `test_homo_mae_ev` (test split, last weights),
    `best_homo_mae_ev` (best validation) and `test_at_best_homo_mae_ev` (test split, the weights of that one).

    Args:
        network, optimizer, schedule: see Task.
        quantity: the property, a target of the datamodule.
        unit_of_quantity: where a checkpoint keeps it; training takes it from the datamodule.
        target: mean absolute errors in natural units that count as reached, by quantity.
        elements: that the weights know; None until the data tell (those of QM9, for a checkpoint without them).
        mirror: train on the mirror images of about half of a batch's molecules, another half each time, and predict
            the mean over both images. The network is equivariant to rotations alone and has to learn that images are
            equal in energies and all of QM9's targets. Not for what distinguishes them, such as optical rotation.
    """

    unit = "molecules"
    replacements = fast.REPLACEMENTS
    data_kind = GraphDataModule
    expected_data = "the SE(3)-Transformer needs atoms in space; give datamodule=qm9 or datamodule=molecule_file"
    mean: Tensor  # of the quantity over the training molecules, float64
    std: Tensor

    def __init__(
        self,
        network: SE3TransformerPooled,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        quantity: str | None = "homo",
        unit_of_quantity: Text = "eV",
        target: Mapping[str, NotNegative] | None = None,
        elements: Sequence[str] | None = None,
        mirror: bool = False,
    ) -> None:
        super().__init__(network, optimizer, schedule)
        self.mirror = mirror
        self.network: SE3TransformerPooled
        self.elements = None if elements is None else list(elements)
        self.quantity = quantity or ""
        self.target = (target or {}).get(self.quantity)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.ones((), dtype=torch.float64))
        self.molecule = EXAMPLE  # the mean one, for cost()
        self._name(unit_of_quantity)
        self._errors: list[Tensor] = []  # (sum of absolute errors, molecules) of each batch of an evaluation
        self._split = ""  # before the metric's name: which split and weights are evaluated
        self._validated_at = -1  # the step whose weights `self.metrics` judges

    def _name(self, unit: str) -> None:
        self.unit_of_quantity = unit
        words = [self.quantity, "mae", *re.findall("[a-z0-9]+", unit.lower())]
        self.final_metric = FinalMetric("_".join(words), "min", self.target)
        self.curves = ("loss", self.final_metric.name, "lr")

    def setup(self, stage: str) -> None:
        """Takes from the training molecules what a prediction needs of them."""
        if stage != "fit":
            return
        datamodule = self.check_datamodule(self.trainer.datamodule)  # type: ignore[attr-defined]
        if not self.quantity:
            raise UserError("datamodule.task=null names nothing to learn; give the name of a target")
        self.bind_data(datamodule)
        self.mean.fill_(datamodule.mean)
        self.std.fill_(datamodule.std)
        self.molecule = mean_molecule(datamodule.loader("train"))
        self._name(datamodule.unit)
        if self.model_config is not None:
            self.model_config["task"]["unit_of_quantity"] = datamodule.unit

    def bind_data(self, datamodule: GraphDataModule) -> None:
        """Gives the network the features of the data's elements. Raises UserError for others than it knows."""
        graphs: GraphDataModule = self.check_datamodule(datamodule)
        if self.elements is not None:
            graphs.elements = self.elements
        graphs.setup("bind_data")
        assert graphs.elements is not None
        count = features_of([number_of(symbol) for symbol in graphs.elements]).shape[1]
        if count != self.network.transformer.fiber_in.channels(0):
            self.take_network(self.network.with_node_features(count).to(self.device))
        self.elements = graphs.elements
        if self.model_config is not None:
            self.model_config["task"]["elements"] = self.elements
            self.model_config["task"]["network"]["node_features"] = count

    def loss(self, batch: GraphBatch) -> dict[str, Tensor]:
        if self.mirror:
            batch = batch._replace(positions=partly_mirrored(batch.positions, batch.graph_ptr))
        is_known = ~batch.targets.isnan()  # not so for padding, which must not even reach the arithmetic
        wanted = (batch.targets.where(is_known, self.mean) - self.mean) / self.std
        errors = (self.normalised(batch).to(wanted.dtype) - wanted).abs().where(is_known, 0)
        return {"loss": errors.sum() / is_known.sum().clamp_min(1)}

    def normalised(self, batch: GraphBatch) -> Float[Tensor, " graphs"]:
        """Predictions in standard deviations from the mean."""
        return self.network(batch.graph, batch.node_features, batch.edge_features).squeeze(1)

    def predicted(self, batch: GraphBatch) -> Float[Tensor, " graphs"]:
        """Predictions in natural units, in float64; with `mirror` the mean over a molecule and its mirror image."""

        def normalised(positions: Tensor) -> Tensor:
            return self.normalised(batch._replace(positions=positions)).double()

        positions = batch.positions
        values = mean_of_images(normalised, positions) if self.mirror else normalised(positions)
        return values * self.std + self.mean

    def count(self, batch: GraphBatch) -> int:
        return batch.count

    def cost(self) -> Cost:
        return cost(self.network, self.molecule, self.batch_size, self.activation_bytes, self.updates)

    def example_batch(self, size: int) -> GraphBatch:
        """Rings of atoms at random places, without padding."""
        atoms = int(EXAMPLE.nodes)
        ring = torch.arange(atoms)
        first = atoms * torch.arange(size)[:, None]
        here, there = (first + ring).flatten(), (first + (ring + 1) % atoms).flatten()
        src, dst = torch.cat([here, there]), torch.cat([there, here])
        graph = Graph.build(2 * torch.randn(size * atoms, 3), src, dst, [atoms] * size)
        body = self.network.transformer
        elements = torch.nn.functional.one_hot(torch.randint(5, (size * atoms,)), body.fiber_in.channels(0))
        bonds = torch.nn.functional.one_hot(torch.randint(3, (len(src),)), body.fiber_edge.channels(0))
        targets = (self.mean.cpu() + self.std.cpu() * torch.randn(size)).float()
        tensors = (*graph[:7], elements.float(), bonds.float(), targets)
        return GraphBatch(*(tensor.to(self.device) for tensor in tensors), count=size)

    def validation_step(self, batch: GraphBatch, batch_idx: int) -> None:
        errors = self.in_evaluation(self._absolute_errors)(batch)
        self._errors.append(errors.clone())  # a graph writes the next batch's there

    test_step = validation_step

    def _absolute_errors(self, batch: GraphBatch) -> Float[Tensor, "2"]:
        """Returns the sum of absolute errors over the real molecules, and how many those are."""
        is_known = ~batch.targets.isnan()
        errors = (self.predicted(batch) - batch.targets.double()).abs().where(is_known, 0)
        return torch.stack([errors.sum(), is_known.sum().double()])

    def _mean_absolute_error(self, name: str) -> dict[str, float]:
        """Returns the error by name over all molecules that all ranks evaluated; nothing if there was none."""
        total = torch.stack([torch.zeros(2, dtype=torch.float64, device=self.device), *self._errors]).sum(0)
        self._errors = []
        if self.trainer.world_size > 1:
            distributed.all_reduce(total)
        error, count = total.tolist()
        return {name: error / count} if count else {}

    def on_validation_epoch_end(self) -> None:
        self.metrics = self._mean_absolute_error(self.final_metric.name)
        self._validated_at = self.trainer.global_step

    def on_test_epoch_end(self) -> None:
        self.metrics |= self._mean_absolute_error(f"{self._split}{self.final_metric.name}")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["metrics"] = dict(self.metrics)

    def evaluate_last(self, datamodule: Any) -> None:
        if self._validated_at != self.trainer.global_step:
            self.trainer.limit_val_batches = 1.0  # none where the training was to have no evaluation
            self.trainer.validate(self, datamodule=datamodule, verbose=False)
        self._split = "test_"
        self.trainer.test(self, datamodule=datamodule, verbose=False)

    def evaluate_best(self, datamodule: Any, checkpoint: Path) -> None:
        best = read_checkpoint(checkpoint)
        load_weights(self, best, checkpoint)
        metrics = best.get("metrics")
        value = metrics.get(self.final_metric.name) if isinstance(metrics, dict) else None
        if not isinstance(value, float):
            raise UserError(f"{checkpoint}: does not say its {self.final_metric.name}; remove it, or start anew")
        self.metrics[f"best_{self.final_metric.name}"] = value
        self._split = "test_at_best_"
        self.trainer.test(self, datamodule=datamodule, verbose=False)
        if self.trainer.is_global_zero:
            figures = "; ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
            print(f"mean absolute errors: {figures}")

    def exported(self) -> Export:
        return exported(self)

    def predictor(self, inference: Inference) -> MoleculePredictor:
        elements, quantity = self.elements or list(ELEMENTS), (self.quantity, self.unit_of_quantity)
        return MoleculePredictor(self.network, self.predicted, elements, quantity, self.device, inference)

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Predicts molecules of a file or a split; see `src.models.se3_transformer.predict`."""
        datamodule = self.check_datamodule(job.datamodule())
        datamodule.device, datamodule.task = self.device, None
        datamodule.elements = self.elements or list(ELEMENTS)
        datamodule.prepare_data()
        if self.quantity in datamodule.source(datamodule.data_dir).units:
            datamodule.task = self.quantity  # the true values of what the checkpoint predicts
        datamodule.setup("predict")
        self.molecule = mean_molecule(datamodule.loader(datamodule.predict))
        is_trained = (self.mean.item(), self.std.item()) != (0.0, 1.0)  # those of random weights
        mean = self.mean.item() if is_trained else None
        quantity = Quantity(self.quantity, self.unit_of_quantity, self.final_metric, mean)
        return predict_molecules(self.predicted, datamodule, job, clock, quantity)


def partly_mirrored(
    positions: Float[Tensor, "nodes 3"], graph_ptr: Int[Tensor, " graphs_and_1"]
) -> Float[Tensor, "nodes 3"]:
    """Returns the positions, each molecule's with probability 1/2 inverted at the origin: a mirror image, turned."""
    device = positions.device
    node = torch.arange(len(positions), device=device)
    molecule = torch.searchsorted(graph_ptr, node, right=True) - 1  # padded nodes: one after the last
    signs = 1 - 2 * torch.randint(2, (len(graph_ptr), 1), device=device)
    return positions * signs[molecule]


def mean_molecule(loader: GraphLoader) -> Molecule:
    """Returns the mean molecule of a loader."""
    sizes = (numbers[loader.index.numpy()] for numbers in (loader.graphs.num_nodes, loader.graphs.num_edges))
    nodes, edges = (float(size.mean()) for size in sizes)
    return Molecule(nodes, edges)
