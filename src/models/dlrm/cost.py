"""DLRM's cost per sample by formula: floating point operations (two per multiply-add) and bytes.

Only matrix products count. V V^T counts whole, as tensor cores compute it, though only its lower triangle is used.
The published model trains at 14.7 MFLOP and 109 KB a sample, of which 53 KB are the tables' rows.
"""

from math import prod
from typing import NamedTuple

from torch import nn

from src.measure.roofline import Cost
from src.models.dlrm.network import DLRM, CrossNet, Dot

SGD_BYTES = 12  # per dense parameter: read it and its gradient, write it, 4 bytes each
TABLE_PASSES = {
    "sgd": 3,
    "adagrad": 5,
}  # over a row: look up, read, write; Adagrad reads and writes its squares


class Macs(NamedTuple):
    """Multiply-adds of a sample: those of the forward pass, and those that the backward pass omits."""

    forward: int
    omitted: int  # of two per forward multiply-add


def macs_per_sample(network: DLRM) -> Macs:
    """Counts the multiply-adds of all matrix products."""
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    products = sum(prod(layer.weight.shape) for layer in linears)
    if isinstance(network.interaction, Dot):
        products += (len(network.tables) + 1) ** 2 * network.embedding_dim
    return Macs(products, prod(network.bottom.widths[:2]))  # the numerical features get no gradient


def bytes_per_sample(
    network: DLRM, batch_size: float, activation_bytes: int, updates: float = 1, number_bytes: int = 2
) -> tuple[float, float]:
    """Returns the least bytes of device memory traffic of one sample in a batch: (forward, training).

    Forward: read the batch (`number_bytes` a numerical feature, 4 an id) and a row for each id (4 bytes an element,
    also if several samples use the row); write and read each activation once, vectors and interaction included; read
    the MLPs' parameters (4 bytes) once per batch. Training: read each activation once more, write and read its
    gradient; read and write a row again; read a dense parameter twice, write its gradient, and move SGD_BYTES in each
    of the `updates` optimiser steps a batch. Where a dot interaction can take rows as they are, because a sample has
    one id of each table, no vectors are written or read: it reads the rows, and in training once more.
    """
    lookups = sum(table.hotness for table in network.tables)
    batch = number_bytes * network.bottom.widths[0] + 4 * lookups
    row_bytes = 4 * network.embedding_dim * lookups
    takes_rows = isinstance(network.interaction, Dot) and all(table.hotness == 1 for table in network.tables)
    vectors = len(network.tables) * network.embedding_dim
    activations = 0 if takes_rows else vectors
    activations += network.interaction.num_features + sum(network.bottom.widths[1:]) + sum(network.top.widths[1:])
    if isinstance(network.interaction, CrossNet):
        activations += sum(down.out_features + up.out_features for down, up in network.interaction.layers())
    parameters = sum(parameter.numel() for parameter in network.dense_parameters()) / batch_size
    forward = batch + row_bytes + 2 * activation_bytes * activations + 4 * parameters
    rows = TABLE_PASSES[network.embeddings.optimizer] * row_bytes
    if takes_rows:
        rows += row_bytes + 2 * activation_bytes * vectors  # gradients are written and read
    training = batch + rows + 5 * activation_bytes * activations + (8 + 4 + updates * SGD_BYTES) * parameters
    return forward, training


def cost(network: DLRM, batch_size: float, activation_bytes: int, updates: float = 1, number_bytes: int = 2) -> Cost:
    """Returns useful FLOPs and least bytes per sample, for the distance to the hardware's limits."""
    forward, omitted = macs_per_sample(network)
    moved = bytes_per_sample(network, batch_size, activation_bytes, updates, number_bytes)
    return Cost(2 * forward, 2 * (3 * forward - omitted), *moved)
