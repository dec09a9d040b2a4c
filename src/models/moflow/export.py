"""MoFlow for export.py: latents to molecules."""

import torch
from torch import Tensor, nn

from src.models.moflow.network import MoFlow
from src.molecules.vocabulary import Vocabulary
from src.training.export import Export, Inputs, Outputs, TensorGraph


class Decoder(nn.Module):
    """Latents to continuous atom classes and the bonds of 0 and 1 that these are conditioned on."""

    def __init__(self, network: MoFlow) -> None:
        super().__init__()
        self.network = network

    def forward(self, z_atom: Tensor, z_bond: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.reverse(z_atom, z_bond)


def exported(network: MoFlow, vocabulary: Vocabulary, temperature: object) -> Export:
    """Returns the decoder and what turns its outputs into molecules."""
    sigma = float(torch.exp(network.ln_var.detach() / 2))

    def example(batch: int) -> tuple[Inputs, Outputs]:
        shapes = (network.num_nodes, network.num_atom_classes), (network.num_bond_classes, *2 * (network.num_nodes,))
        z_atom, z_bond = (sigma * torch.randn(batch, *shape) for shape in shapes)
        return {"z_atom": z_atom, "z_bond": z_bond}, network.reverse(z_atom, z_bond)

    batch = {0: "batch"}
    return Export(
        preprocessing={
            "elements": vocabulary.elements,  # of the atom classes from 1 on; class 0 is no atom
            "max_atoms": network.max_atoms,  # node rows beyond are padding
            "bond_orders": [0, 1, 2, 3][: network.num_bond_classes],  # of the bond classes
            "latent_std": sigma,  # of the prior, to be multiplied by the temperature
            "temperature": temperature,
        },
        graph=TensorGraph(Decoder(network), example, {"z_atom": batch, "z_bond": batch}, ("atoms", "bonds")),
        refused={"hf": "transformers has no such model"},
        pipeline="graph-ml",
    )
