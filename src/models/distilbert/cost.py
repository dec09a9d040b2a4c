"""DistilBERT's cost per sentence by formula: floating point operations (two per multiply-add) and bytes.

Only matrix products count, over all tokens of a padded sentence or the real ones of a packed one. The published
sentence of 512 tokens takes 48.3 GFLOP forward and 145 GFLOP to train.
"""

from src.batches.tokens import Work
from src.measure.roofline import ADAM_BYTES, Cost
from src.models.distilbert.network import DistilBert, Sizes


def macs_per_sentence(sizes: Sizes, work: Work) -> float:
    """Counts forward multiply-adds: projections and feed-forward of each token, attention of each pair, the head."""
    layer = work.tokens * (4 * sizes.dim**2 + 2 * sizes.dim * sizes.hidden_dim) + 2 * work.squares * sizes.dim
    return sizes.n_layers * layer + sizes.dim * (sizes.dim + sizes.num_labels)


def bytes_per_sentence(
    network: DistilBert, work: Work, batch_size: float, activation_bytes: int, updates: float = 1
) -> tuple[float, float]:
    """Returns the least bytes of device memory traffic of one sentence in a batch: (forward, training).

    Forward: read each token's id and word vector (4 bytes an element); write and read each activation once (the
    embedding, and in each layer three projections, the context, two norms and the wide hidden layer); read the weights
    of products (4 bytes) once per batch. Training: read each activation once more, write and read its gradient; read
    the weights twice; write the gradients of all parameters, tables included; move Adam's ADAM_BYTES in each of the
    `updates` optimiser steps a batch.
    """
    sizes = network.sizes
    activations = work.tokens * (sizes.dim + sizes.n_layers * (6 * sizes.dim + sizes.hidden_dim))
    read = 4 * work.tokens * (1 + sizes.dim)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    weights = parameters - (sizes.vocab_size + sizes.max_position_embeddings) * sizes.dim
    forward = read + 2 * activation_bytes * activations + 4 * weights / batch_size
    update = (8 * weights + (4 + updates * ADAM_BYTES) * parameters) / batch_size
    return forward, read + 5 * activation_bytes * activations + update


def cost(network: DistilBert, work: Work, batch_size: float, activation_bytes: int, updates: float = 1) -> Cost:
    """Returns useful FLOPs and least bytes per sentence, for the distance to the hardware's limits."""
    flops = 2 * macs_per_sentence(network.sizes, work)
    return Cost(flops, 3 * flops, *bytes_per_sentence(network, work, batch_size, activation_bytes, updates))
