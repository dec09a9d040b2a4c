"""The cost of one molecule in the SE(3)-Transformer: floating point operations (two per multiply-add) and bytes.

Counted are products with parameters and with the basis, for the convolution as published but without products with
zeros: radial weights from the hidden layer, source features times the non-zero blocks of the basis, and the weights
applied to these. Not counted are the basis or frames (once per forward, 0.1%), attention's sums, norms and other
elementwise work. Training the published model takes 2.4 GFLOP for QM9's mean molecule, and 3.4 with the products with
zeros of NVIDIA's fused basis.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, cast

from torch import nn

from src.measure.roofline import ADAM_BYTES, Cost
from src.models.se3_transformer.attention import AttentionBlockSE3
from src.models.se3_transformer.basis import num_frequencies
from src.models.se3_transformer.conv import ConvSE3
from src.models.se3_transformer.linear import LinearSE3
from src.models.se3_transformer.network import SE3TransformerPooled
from src.models.se3_transformer.radial import RadialGroup


@dataclass(frozen=True)
class Molecule:
    """The mean molecule of a data set: atoms, and directed edges."""

    nodes: float
    edges: float


QM9 = Molecule(18.03, 37.28)  # with bonds as edges


class Macs(NamedTuple):
    """Multiply-adds of the forward pass, and those that the backward pass (two per product) skips for data."""

    forward: float
    skipped: float = 0.0

    @staticmethod
    def total(parts: "Iterator[Macs]") -> "Macs":
        macs = list(parts)
        return Macs(sum(part.forward for part in macs), sum(part.skipped for part in macs))

    def times(self, count: float) -> "Macs":
        return Macs(self.forward * count, self.skipped * count)


def macs_per_molecule(network: SE3TransformerPooled, molecule: Molecule) -> Macs:
    """Returns the multiply-adds of one molecule. Atoms, bonds and distances are data and need no gradient."""
    body = network.transformer
    parts = []
    for number, block in enumerate(body.blocks):
        assert isinstance(block, AttentionBlockSE3)
        first = number == 0
        query = linear_macs(block.to_query)
        parts += [
            conv_macs(block.to_value_key, input_is_data=first).times(molecule.edges),
            Macs(query, query if first else 0).times(molecule.nodes),
            Macs(linear_macs(block.project), _input_projection_macs(block) if first else 0).times(molecule.nodes),
        ]
    output = body.to_output
    self_macs = sum(prod(matrix.shape) * (2 * int(degree) + 1) for degree, matrix in output.to_self.items())
    is_data = not len(body.blocks)
    parts += [
        conv_macs(output, is_data).times(molecule.edges),
        Macs(self_macs, self_macs if is_data else 0).times(molecule.nodes),
    ]
    parts.append(Macs(sum(prod(layer.weight.shape) for layer in network.head if isinstance(layer, nn.Linear))))
    return Macs.total(iter(parts))


def conv_macs(conv: ConvSE3, input_is_data: bool) -> Macs:
    """Returns the multiply-adds of one edge without self-interaction. Features that are data need no gradient."""
    parts = []
    for module in conv.groups:
        group = cast(RadialGroup, module).group
        first, second = (layer for layer in cast(RadialGroup, module).hidden if isinstance(layer, nn.Linear))
        radial = prod(second.weight.shape) + group.num_weights * second.out_features
        parts += [Macs(prod(first.weight.shape), prod(first.weight.shape)), Macs(radial)]
        for d_in, d_out in group.pairs():
            components = num_frequencies((d_in, d_out)) * (2 * d_out + 1)
            # Degree 0 has one component: its product is a scaling.
            angular = group.inputs.channels(d_in) * (2 * d_in + 1) * components if d_in else 0
            applied = components * group.size((d_in, d_out))
            # The basis is data too: at most one of its two backward products is needed.
            angular_skipped, applied_skipped = (2 * angular, applied) if input_is_data else (angular, 0)
            parts += [Macs(angular, angular_skipped), Macs(applied, applied_skipped)]
    return Macs.total(iter(parts))


def _input_projection_macs(block: AttentionBlockSE3) -> float:
    """Returns the multiply-adds of one node in the part of the projection that applies to the block's input."""
    fiber_in, fiber_out = block.to_query.sources[0], block.project.fiber_out
    return sum(count * fiber_out.channels(degree) * (2 * degree + 1) for degree, count in fiber_in.items())


def linear_macs(linear: LinearSE3) -> float:
    """Returns the multiply-adds of one node."""
    return sum(prod(matrix.shape) * (2 * int(degree) + 1) for degree, matrix in linear.weights.items())


def bytes_per_molecule(
    network: SE3TransformerPooled, molecule: Molecule, batch_size: float, activation_bytes: int, updates: float = 1
) -> tuple[float, float]:
    """Returns the least bytes through device memory of one molecule in a batch: (forward, training).

    Forward: each layer's output (messages of an edge; queries, attended values and features of a node) is written and
    read once, `activation_bytes` per number; radial weights and basis stay on the chip. Parameters (4 bytes) are read
    once per batch. Training: each output is also read again, and its gradient is written and read. A parameter is read
    twice, its gradient is written, and the optimiser moves ADAM_BYTES in each of its `updates` steps a batch.
    """
    per_edge, per_node = 0, network.transformer.to_output.fiber_out.num_features
    for module in network.transformer.blocks:
        block = cast(AttentionBlockSE3, module)
        value, key = block.attention.value_fiber.num_features, block.attention.key_fiber.num_features
        per_edge += value + key
        per_node += key + value + 2 * block.project.fiber_out.num_features  # before and after the norm
    numbers = per_edge * molecule.edges + per_node * molecule.nodes
    parameters = sum(parameter.numel() for parameter in network.parameters()) / batch_size
    forward = 2 * activation_bytes * numbers + 4 * parameters
    training = 5 * activation_bytes * numbers + (8 + 4 + updates * ADAM_BYTES) * parameters
    return forward, training


def cost(
    network: SE3TransformerPooled, molecule: Molecule, batch_size: float, activation_bytes: int, updates: float = 1
) -> Cost:
    """Returns useful FLOPs and least bytes per molecule."""
    macs = macs_per_molecule(network, molecule)
    training = 2 * (3 * macs.forward - macs.skipped)
    return Cost(
        2 * macs.forward, training, *bytes_per_molecule(network, molecule, batch_size, activation_bytes, updates)
    )
