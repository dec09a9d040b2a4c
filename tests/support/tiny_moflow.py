"""A MoFlow small enough to compute Jacobians, and molecules for it."""

from typing import Any

import torch
from torch import Tensor

from src.gpu.replace import Kernels
from src.models.moflow.fast import accelerate
from src.models.moflow.flow import FlowChain
from src.models.moflow.network import MoFlow

SIZES: dict[str, Any] = {
    "num_nodes": 4,
    "num_atom_classes": 3,
    "max_atoms": 3,
    "bond_squeeze": 2,
    "bond_hidden": (6, 5),
    "num_bond_flows": 3,
    "num_atom_flows": 5,
    "gnn_channels": 6,
    "atom_hidden": (7, 5),
}
QM9: dict[str, Any] = {
    "num_nodes": 9,
    "num_atom_classes": 5,
    "max_atoms": 9,
    "bond_squeeze": 3,
    "bond_hidden": (128, 128),
    "conv_lu": 1,
    "num_atom_flows": 27,
    "gnn_channels": 64,
    "atom_hidden": (128, 64),
}


def make_network(seed: int = 0, kernels: Kernels = "auto", **changes: Any) -> MoFlow:
    """Returns a float64 network with these fast modules, and noise added to every parameter and running statistic."""
    torch.manual_seed(seed)
    network = MoFlow(**{**SIZES, **changes}).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.add_(0.5 * torch.rand_like(buffer))
    return accelerate(network, kernels)


def steps_of(chain: FlowChain) -> list[Any]:
    """Returns the steps as Any, so that type checkers accept attributes of their class."""
    return list(chain.steps)


def make_molecules(batch: int, seed: int = 0, atoms: int = 3, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Returns random atom classes, and random symmetric bonds without self-loops."""
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randint(0, classes, (batch, atoms), generator=generator, dtype=torch.uint8)
    bonds = torch.randint(0, 4, (batch, atoms, atoms), generator=generator, dtype=torch.uint8).tril(-1)
    return nodes, bonds + bonds.transpose(1, 2)
