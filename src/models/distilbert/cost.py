"""What a sentence costs DistilBERT: floating point operations (two per multiply-add) and bytes, counted by formula.

Counted are matrix products, over all tokens of a padded sentence or the real ones of a packed one. The published
sentence of 512 tokens takes 48.3 GFLOP forward and 145 to train.
"""

from typing import NamedTuple

from src.measure.roofline import ADAM_BYTES, Cost
from src.models.distilbert.network import DistilBert, Sizes


class Work(NamedTuple):
    """Of an average sentence: its tokens, and their square (tokens times tokens attended to)."""

    tokens: float
    squares: float


def macs_per_sentence(sizes: Sizes, work: Work) -> float:
    """Multiply-adds forward: projections and feed-forward of each token, attention of each pair, the head."""
    layer = work.tokens * (4 * sizes.dim**2 + 2 * sizes.dim * sizes.hidden_dim) + 2 * work.squares * sizes.dim
    return sizes.n_layers * layer + sizes.dim * (sizes.dim + sizes.num_labels)


def bytes_per_sentence(network: DistilBert, work: Work, batch_size: int, activation_bytes: int) -> tuple[float, float]:
    """Least bytes through device memory of one sentence in a batch: (forward, training).

    forward: a token's id is read and its word vector (4 bytes a number); what one product or norm hands to the next is
    written and read once: the embedding, and in each layer three projections, the context, two norms and the wide
    hidden layer; weights of products (4 bytes) are read once per batch. Training: each number handed on is read once
    more, and its gradient written and read; weights are read twice; all parameters, tables included, have a gradient
    written and Adam's ADAM_BYTES.
    """
    sizes = network.sizes
    numbers = work.tokens * (sizes.dim + sizes.n_layers * (6 * sizes.dim + sizes.hidden_dim))
    read = 4 * work.tokens * (1 + sizes.dim)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    weights = parameters - (sizes.vocab_size + sizes.max_position_embeddings) * sizes.dim
    forward = read + 2 * activation_bytes * numbers + 4 * weights / batch_size
    update = (8 * weights + (4 + ADAM_BYTES) * parameters) / batch_size
    return forward, read + 5 * activation_bytes * numbers + update


def cost(network: DistilBert, work: Work, batch_size: int, activation_bytes: int) -> Cost:
    """Useful FLOPs and least bytes per sentence, for the distance to the hardware's limits."""
    flops = 2 * macs_per_sentence(network.sizes, work)
    return Cost(flops, 3 * flops, *bytes_per_sentence(network, work, batch_size, activation_bytes))
