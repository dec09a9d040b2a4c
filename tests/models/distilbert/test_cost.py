"""DistilBERT's costs: the published sentence of 512 tokens, and FLOPs and bytes counted by hand."""

import pytest
import torch

from src.models.distilbert import DistilBert, Sizes
from src.models.distilbert.cost import Work, cost

TINY = Sizes(vocab_size=30, max_position_embeddings=12, dim=4, n_layers=2, n_heads=2, hidden_dim=6, num_labels=2)


def test_a_padded_sentence_of_the_published_model_costs_the_specified_flops() -> None:
    with torch.device("meta"):
        network = DistilBert()
    costs = cost(network, Work(512, 512**2), 96, 4)
    assert costs.flops_forward == pytest.approx(48.3e9, rel=1e-3)
    assert costs.flops_training == 3 * costs.flops_forward


def test_flops_count_matrix_products() -> None:
    """5 tokens: q, k, v and out, two feed-forward layers, scores and weighted values, and the head's two layers."""
    layer = 4 * (5 * 4 * 4) + 2 * (5 * 4 * 6) + 2 * (5 * 5 * 4)
    assert cost(DistilBert(TINY), Work(5, 25), 1, 4).flops_forward == 2 * (2 * layer + 4 * 4 + 4 * 2)


def test_tokens_and_pairs_of_tokens_count_separately() -> None:
    network = DistilBert(TINY)
    few, more = cost(network, Work(5, 25), 1, 4), cost(network, Work(5, 26), 1, 4)
    assert more.flops_forward - few.flops_forward == 2 * 2 * 2 * 4
    assert more.bytes_training == few.bytes_training


def test_bytes_equal_those_counted_by_hand() -> None:
    """10 sentences of 3 tokens, activations of 2 bytes."""
    network = DistilBert(TINY)
    layer = 4 * (4 * 4 + 4) + 2 * (4 + 4) + (4 * 6 + 6) + (6 * 4 + 4)
    weights = 2 * layer + 2 * 4 + (4 * 4 + 4) + (2 * 4 + 2)
    tables = (30 + 12) * 4
    activations = 3 * (4 + 2 * (6 * 4 + 6))
    words = 3 * (4 + 4 * 4)
    costs = cost(network, Work(3, 9), 10, 2)
    assert costs.bytes_forward == pytest.approx(words + 4 * activations + 4 * weights / 10)
    update = (8 * weights + 32 * (weights + tables)) / 10
    assert costs.bytes_training == pytest.approx(words + 10 * activations + update)
