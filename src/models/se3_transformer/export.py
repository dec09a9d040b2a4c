"""The SE(3)-Transformer for export.py: molecules to one property in its natural unit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.molecular_graphs import Graph
from src.datamodules.graphs.data import ELEMENTS, number_of
from src.datamodules.graphs.loader import features_of
from src.models.se3_transformer.network import SE3TransformerPooled
from src.training.export import Export, Inputs, Outputs, TensorGraph

BONDS = ["single", "double", "triple", "aromatic"]  # one-hot, all 0 for a pair without a bond


class Property(nn.Module):
    """The property of each molecule, of edges in any order and without padding."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: SE3TransformerPooled, mean: Tensor, std: Tensor, mirror: bool) -> None:
        """`mirror`: the mean over a molecule and its mirror image."""
        super().__init__()
        self.network, self.mirror = network, mirror
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(
        self, positions: Tensor, src: Tensor, dst: Tensor, graph_ptr: Tensor, atoms: Tensor, bonds: Tensor
    ) -> Tensor:
        in_degrees = torch.zeros_like(positions[:, 0], dtype=torch.int64).index_add(0, dst, torch.ones_like(dst))
        dst_ptr = F.pad(in_degrees.cumsum(0), (1, 0))

        def normalised(positions: Tensor) -> Tensor:
            # The plain network reads no order of the edges by source.
            graph = Graph(positions, src, dst, dst_ptr, src, dst_ptr, graph_ptr, distinct=True)
            return self.network(graph, atoms, bonds)[:, 0].double()

        values = mean_of_images(normalised, positions) if self.mirror else normalised(positions)
        return values * self.std + self.mean


def mean_of_images(values: Callable[[Tensor], Tensor], positions: Tensor) -> Tensor:
    """Returns the mean of a function of the atoms' positions over molecules and their mirror images."""
    return (values(positions) + values(-positions)) / 2


def exported(task: Any) -> Export:
    """Returns the network with the mean and deviation of its training molecules."""

    def example(batch: int) -> tuple[Inputs, Outputs]:
        molecules = task.example_batch(batch)
        names = "positions", "src", "dst", "graph_ptr", "atoms", "bonds"
        tensors = (*molecules[:3], molecules.graph_ptr, molecules.node_features, molecules.edge_features)
        return dict(zip(names, tensors, strict=True)), (task.predicted(molecules),)

    elements = task.elements or list(ELEMENTS)
    nodes, edges = {0: "atoms"}, {0: "edges"}
    free = {"positions": nodes, "src": edges, "dst": edges, "graph_ptr": {0: "molecules_and_1"}, "atoms": nodes}
    return Export(
        preprocessing={
            "quantity": task.quantity,
            "unit": task.unit_of_quantity,
            "mean": task.mean.item(),
            "std": task.std.item(),
            "elements": elements,
            "atom_features": dict(zip(elements, features_of([*map(number_of, elements)]).tolist(), strict=False)),
            "bond_features": BONDS,
            "positions": "angstrom",
            "mean_of_mirror_images": task.mirror,
        },
        graph=TensorGraph(
            Property(task.network, task.mean, task.std, task.mirror),
            example,
            free | {"bonds": edges},
            (task.quantity or "value",),
            scale=task.std.item(),
        ),
        refused={
            "hf": "transformers has no such model",
            "onnx": "ONNX has no searchsorted, by which atoms are assigned to molecules",
        },
        pipeline="graph-ml",
    )
