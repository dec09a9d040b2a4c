"""The cost of one molecule in MoFlow, by formula: floating point operations (two per multiply-add) and bytes.

Only products with samples count; elementwise work, normalisations and products that form a weight do not.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import Literal, cast

from src.measure.roofline import ADAM_BYTES, Cost
from src.models.moflow.atom import AtomStep
from src.models.moflow.bond import BondStep
from src.models.moflow.fast.graph_conv import padded_width
from src.models.moflow.network import MoFlow

Counting = Literal["useful", "plain", "fast"]


@dataclass(frozen=True)
class Flops:
    """FLOPs per sample. `training` is forward and backward, `sampling` the reverse pass."""

    forward: int
    training: int
    sampling: int


def flops_per_sample(network: MoFlow, counting: Counting = "useful") -> Flops:
    """Returns the floating point operations of one sample.

    `plain` and `fast` count what these modules compute, as FlopCounterMode does: a 3x3 convolution computes nine taps
    per position, also outside the map. `useful` counts what the model requires: the published layers, with only
    the taps inside the map. The exact log-determinant requires one row per atom step, whose neighbours are summed
    before the wide product. Training the published ZINC model takes 3.30 useful GFLOP.
    """
    bond_step, atom_step = _steps(network)
    bonds, atoms = len(network.bond_flow.steps), len(network.atom_flow.steps)
    bond = bonds * _bond_step_macs(network, bond_step, counting)
    products, with_adjacency = _atom_step_macs(network, atom_step, counting, atom_step.logdet == "exact")
    sampled = _atom_step_macs(network, atom_step, counting, row_only=True)
    return Flops(
        forward=2 * (bond + atoms * (products + with_adjacency)),
        # The backward pass costs twice the forward for every product, but the adjacency needs no gradient.
        training=2 * (3 * bond + atoms * (3 * products + 2 * with_adjacency)),
        sampling=2 * (bond + atoms * sum(sampled)),
    )


def _steps(network: MoFlow) -> tuple[BondStep, AtomStep]:
    """Returns the first step of each flow: the others cost the same."""
    return cast(BondStep, network.bond_flow.steps[0]), cast(AtomStep, network.atom_flow.steps[0])


def _bond_step_macs(network: MoFlow, step: BondStep, counting: Counting) -> int:
    """Returns the multiply-adds of a coupling network and of the 1x1 convolution, if there is one."""
    channels = step.coupling.widths[-1]
    positions = network.num_bond_classes * network.num_nodes**2 // channels
    taps_inside = (3 * isqrt(positions) - 2) ** 2
    dense = counting == "useful" or (counting == "fast" and positions == 4)
    taps = taps_inside if dense else 9 * positions
    pairs = sum(map(prod, pairwise(step.coupling.widths)))
    return taps * pairs + (positions * channels**2 if step.conv is not None else 0)


def _atom_step_macs(network: MoFlow, step: AtomStep, counting: Counting, row_only: bool) -> tuple[int, int]:
    """Returns an atom step's multiply-adds: products with parameters, and the product with the adjacency."""
    nodes, kinds, classes = network.num_nodes, network.num_bond_classes, network.num_atom_classes
    channels = step.widths[0]
    rows = 1 if row_only and counting != "plain" else nodes
    mlp = rows * sum(map(prod, pairwise(step.widths)))
    if counting == "fast":
        width = padded_width(classes)
        return mlp + rows * (1 + kinds) * width * channels, rows * (1 + kinds) * nodes * width
    if rows == 1:
        return mlp + (1 + kinds) * classes * channels, kinds * nodes * classes
    return mlp + nodes * (1 + kinds) * classes * channels, kinds * nodes**2 * channels


def bytes_per_sample(
    network: MoFlow, batch_size: float, activation_bytes: int, updates: float = 1
) -> tuple[float, float]:
    """Returns the least bytes through device memory of one sample in a batch: (forward, training).

    Forward: each product's output is written and read once, and so is the latent (4 bytes per number) of each step.
    Parameters (4 bytes) are read once per batch. Training: each output is also read again, and its gradient is written
    and read. A parameter is read twice, its gradient is written, and the optimiser moves ADAM_BYTES in each of its
    `updates` steps a batch.
    """
    bond_step, atom_step = _steps(network)
    bonds, atoms = len(network.bond_flow.steps), len(network.atom_flow.steps)
    bond_size, atom_size = network.num_bond_classes * network.num_nodes**2, network.num_nodes * network.num_atom_classes
    positions = bond_size // bond_step.coupling.widths[-1]
    rows = 1 if atom_step.logdet == "exact" else network.num_nodes
    outputs = bonds * positions * sum(bond_step.coupling.widths[1:]) + atoms * rows * sum(atom_step.widths)
    latents = bonds * bond_size + atoms * atom_size
    parameters = sum(parameter.numel() for parameter in network.parameters())
    activations = activation_bytes * outputs + 4 * latents
    forward = 2 * activations + 4 * parameters / batch_size
    training = 5 * activations + (8 + 4 + updates * ADAM_BYTES) * parameters / batch_size
    return forward, training


def cost(network: MoFlow, batch_size: float, activation_bytes: int, updates: float = 1) -> Cost:
    """Returns useful FLOPs and least bytes per sample."""
    flops = flops_per_sample(network)
    return Cost(flops.forward, flops.training, *bytes_per_sample(network, batch_size, activation_bytes, updates))
