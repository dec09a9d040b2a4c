"""DistilBERT's layers in plain torch, as functions of hidden states and weights.

A hidden state is a row of `[tokens, dim]` for padded and packed batches; only attention needs the sentences' bounds.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from src.models.distilbert.layout import Layout

EPS = 1e-12  # of every layer norm

Hidden = Float[Tensor, "tokens dim"]
Vector = Float[Tensor, " dim"]


def embed(
    ids: Int[Tensor, "*sentences length"],
    positions: Int[Tensor, " length"],
    words: Float[Tensor, "vocabulary dim"],
    position_vectors: Float[Tensor, "positions dim"],
    weight: Vector,
    bias: Vector,
) -> Float[Tensor, "*sentences length dim"]:
    """Returns the layer norm of each token's word vector plus position vector; padding's vector gets no gradient."""
    vectors = F.embedding(ids, words, padding_idx=0) + F.embedding(positions, position_vectors)
    return F.layer_norm(vectors, weight.shape, weight, bias, EPS)


def project(
    x: Hidden, weights: list[Float[Tensor, "dim dim"]], biases: list[Vector]
) -> Float[Tensor, "tokens projections"]:
    """Applies several linear layers as one product; returns their outputs concatenated."""
    return F.linear(x, torch.cat(weights), torch.cat(biases))


def attend(qkv: Float[Tensor, "tokens projections"], layout: Layout, num_heads: int, dropout: float) -> Hidden:
    """Returns each token's attention within its sentence: softmax(q k^T / sqrt(head)) v, heads concatenated.

    Packed tokens are padded for it, which costs little compared with the products with weights.
    """
    query, key, value = layout.to_sentences(qkv).unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    is_key = layout.is_token[:, None, None]
    context = F.scaled_dot_product_attention(query, key, value, is_key, dropout)
    return layout.to_tokens(context.transpose(1, 2).flatten(2))


def add_norm(x: Hidden, residual: Hidden, weight: Vector, bias: Vector, dropout: float = 0.0) -> Hidden:
    """Returns the layer norm of residual + dropout(x)."""
    return F.layer_norm(residual + F.dropout(x, dropout), weight.shape, weight, bias, EPS)


def linear_gelu(
    x: Hidden, weight: Float[Tensor, "hidden dim"], bias: Float[Tensor, " hidden"]
) -> Float[Tensor, "tokens hidden"]:
    """Applies a linear layer and the exact GELU."""
    return F.gelu(F.linear(x, weight, bias))
