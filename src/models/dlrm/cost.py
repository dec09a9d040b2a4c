"""What one sample costs DLRM: floating point operations (two per multiply-add) and bytes, counted by formula.

Counted are matrix products. V V^T counts whole, as tensor cores carry it out, though its lower triangle is asked for.
The published model trains at 14.7 MFLOP and 116 KB a sample, of which 40 KB are the tables' rows.
"""

from math import prod
from typing import NamedTuple

from torch import nn

from src.measure.roofline import Cost
from src.models.dlrm.network import DLRM, CrossNet, Dot

SGD_BYTES = 12  # per dense parameter: reads it and its gradient, writes it, 4 bytes each
TABLE_PASSES = {"sgd": 3, "adagrad": 5}  # over a row: looked up, read, written; Adagrad's squares are read and written


class Macs(NamedTuple):
    """Multiply-adds of a sample forward, and those of the backward (two per product) that nobody wants."""

    forward: int
    unwanted: int


def macs_per_sample(network: DLRM) -> Macs:
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    products = sum(prod(layer.weight.shape) for layer in linears)
    if isinstance(network.interaction, Dot):
        products += (len(network.tables) + 1) ** 2 * network.embedding_dim
    return Macs(products, prod(network.bottom.widths[:2]))  # the numerical features want no gradient


def bytes_per_sample(network: DLRM, batch_size: int, activation_bytes: int) -> tuple[float, float]:
    """Least bytes through device memory of one sample in a batch: (forward, training).

    forward: the batch is read (2 bytes a numerical feature, 4 an id), and so is a row for each id (4 bytes a number,
    also where other samples have asked for the same row); the numbers that one layer hands to the next, looked up
    vectors and interaction included, are written and read once; the MLPs' parameters (4 bytes) are read once per batch.
    Training: each number handed on is read once more, and its gradient written and read; a row is read and written
    again; a dense parameter is read twice, its gradient written, and the optimiser's SGD_BYTES pass.
    """
    lookups = sum(table.hotness for table in network.tables)
    batch = 2 * network.bottom.widths[0] + 4 * lookups
    row_bytes = 4 * network.embedding_dim * lookups
    numbers = len(network.tables) * network.embedding_dim + network.interaction.num_features
    numbers += sum(network.bottom.widths[1:]) + sum(network.top.widths[1:])
    if isinstance(network.interaction, CrossNet):
        numbers += sum(down.out_features + up.out_features for down, up in network.interaction.layers())
    parameters = sum(parameter.numel() for parameter in network.dense_parameters()) / batch_size
    forward = batch + row_bytes + 2 * activation_bytes * numbers + 4 * parameters
    rows = TABLE_PASSES[network.embeddings.optimizer] * row_bytes
    training = batch + rows + 5 * activation_bytes * numbers + (8 + 4 + SGD_BYTES) * parameters
    return forward, training


def cost(network: DLRM, batch_size: int, activation_bytes: int) -> Cost:
    """Useful FLOPs and least bytes per sample, for the distance to the hardware's limits."""
    forward, unwanted = macs_per_sample(network)
    return Cost(2 * forward, 2 * (3 * forward - unwanted), *bytes_per_sample(network, batch_size, activation_bytes))
