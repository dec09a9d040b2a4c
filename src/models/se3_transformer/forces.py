"""Energies and the forces that follow from them, which the published code cannot give."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.errors import UserError
from src.models.se3_transformer.network import Features, SE3TransformerPooled


def energy_and_forces(
    network: SE3TransformerPooled,
    graph: Graph,
    node_features: Features,
    edge_features: Features | None = None,
    create_graph: bool = False,
) -> tuple[Float[Tensor, " graphs"], Float[Tensor, "nodes 3"]]:
    """The network's one output as an energy, and forces = -d energy / d positions, in its unit per angstrom.

    With `create_graph` both may go into a loss; otherwise they are detached. The reference execution runs. Raises
    UserError for a network of several outputs.
    """
    with torch.enable_grad():
        positions = graph.positions.detach().requires_grad_()
        outputs = network(graph._replace(positions=positions), node_features, edge_features)
        if outputs.shape[1] != 1:
            raise UserError(f"a network of {outputs.shape[1]} outputs has no single energy: set output_dim=1")
        energy = outputs[:, 0]
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)
    return (energy, -gradient) if create_graph else (energy.detach(), -gradient)
