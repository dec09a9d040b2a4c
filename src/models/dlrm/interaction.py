"""DLRM's feature interactions in plain torch: pairwise dot products, concatenation, and cross layers.

`dense` is the bottom MLP's output, `sparse` one vector per table in the order of the tables.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

PAD = 8  # elements: tensor cores need rows of 16 bytes


def padded(width: int) -> int:
    """Returns `width` rounded up to a multiple of PAD: 479 becomes 480."""
    return -(-width // PAD) * PAD


def dot(vectors: Float[Tensor, "batch n dim"]) -> Float[Tensor, "batch triangle"]:
    """Returns the dot products of all pairs: the strictly lower triangle of V V^T, row by row."""
    n = vectors.shape[1]
    row, column = torch.tril_indices(n, n, -1, device=vectors.device)
    return torch.bmm(vectors, vectors.mT)[:, row, column]


def dot_features(
    dense: Float[Tensor, "batch dim"], sparse: Float[Tensor, "batch tables dim"]
) -> Float[Tensor, "batch features"]:
    """Returns the bottom MLP's output, the dot products of all pairs, and zeros up to the next multiple of PAD."""
    products = dot(torch.cat([dense[:, None], sparse], 1))
    width = dense.shape[1] + products.shape[1]
    return torch.cat([dense, products, dense.new_zeros(dense.shape[0], padded(width) - width)], 1)


def cat_features(
    dense: Float[Tensor, "batch dim"], sparse: Float[Tensor, "batch tables dim"]
) -> Float[Tensor, "batch features"]:
    """Returns all vectors concatenated."""
    return torch.cat([dense, sparse.flatten(1)], 1)


def cross(
    x0: Float[Tensor, "batch features"],
    x: Float[Tensor, "batch features"],
    down: Float[Tensor, "rank features"],
    up: Float[Tensor, "features rank"],
    bias: Float[Tensor, " features"],
) -> Float[Tensor, "batch features"]:
    """Applies a low-rank cross layer of DCNv2 (arXiv:2008.13535, eq. 2): x0 * (U V^T x + b) + x, U = up, V^T = down."""
    return x0 * F.linear(F.linear(x, down), up, bias) + x
