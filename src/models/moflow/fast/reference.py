"""MoFlow's products as published: a convolution, and messages summed over edge types and neighbours."""

from math import isqrt

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def conv3x3(
    maps: Float[Tensor, "batch positions inputs"],
    weight: Float[Tensor, "outputs inputs 3 3"],
    bias: Float[Tensor, " outputs"],
) -> Float[Tensor, "batch positions outputs"]:
    """Computes a zero-padded 3x3 convolution on square maps whose positions are flattened row by row."""
    size = isqrt(maps.shape[1])
    images = maps.transpose(1, 2).unflatten(2, (size, size))
    return F.conv2d(images, weight, bias, padding=1).flatten(2).transpose(1, 2)


def graph_conv(
    x: Float[Tensor, "batch nodes classes"],
    relations: Float[Tensor, "batch nodes relations nodes"],
    self_weight: Float[Tensor, "channels classes"],
    self_bias: Float[Tensor, " channels"],
    edge_weight: Float[Tensor, "channels_edges classes"],
    edge_bias: Float[Tensor, " channels_edges"],
) -> Float[Tensor, "batch nodes channels"]:
    """Computes an R-GCN layer: own features plus the unnormalised messages of every node over every edge type.

    `relations[b, m, r, n]` is 1 where n sends to m; r = 0 is the identity (unused here), r = 1 + e edge type e.
    The edge type is the fastest index of `edge_weight`'s rows.
    """
    messages = F.linear(x, edge_weight, edge_bias).unflatten(2, (self_weight.shape[0], -1))
    received = torch.einsum("bmen,bnce->bmc", relations[:, :, 1:], messages)
    return F.linear(x, self_weight, self_bias) + received
