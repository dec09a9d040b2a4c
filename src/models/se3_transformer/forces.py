"""Energies and their forces, which the published code cannot compute."""

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
    """Returns the network's single output as energy, and forces = -d energy / d positions in its unit per angstrom.

    With `create_graph` both can be used in a loss; otherwise they are detached. Convolutions are plain ones here.
    Raises UserError for a network with several outputs.
    """
    with torch.enable_grad():
        positions = graph.positions.detach().requires_grad_()
        outputs = network(graph._replace(positions=positions), node_features, edge_features)
        if outputs.shape[1] != 1:
            raise UserError(f"a network with {outputs.shape[1]} outputs has no single energy: set output_dim=1")
        energy = outputs[:, 0]
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)
    return (energy, -gradient) if create_graph else (energy.detach(), -gradient)
