"""MoFlow's products with the work that the published form wastes taken out.

- On a 2x2 map every pair of positions meets in exactly one tap, so a padded 3x3 convolution is one dense matrix of
  4 x inputs to 4 x outputs: 16 of the 36 multiply-adds that a convolution executes.
- The graph convolution is linear, so neighbours are summed over the few atom classes first and the wide product runs
  once per node instead of once per node and edge type.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def dense_matrix(weight: Float[Tensor, "outputs inputs 3 3"]) -> Float[Tensor, "rows columns"]:
    """The 3x3 kernel as the matrix [4 outputs, 4 inputs] of a padded 2x2 map, positions outermost on both sides.

    Output position (y, x) sees input position (v, u) through tap (v - y + 1, u - x + 1), so its four taps are a 2x2
    window of the kernel: four slices, whose gradient is four slices added. Coalesced when `weight` is channels-last.
    """
    taps = weight.permute(0, 2, 3, 1)
    windows = [taps[:, 1 - y : 3 - y, 1 - x : 3 - x] for y in (0, 1) for x in (0, 1)]
    return torch.stack(windows).flatten(2).flatten(0, 1)


def conv3x3(
    maps: Float[Tensor, "batch 4 inputs"],
    weight: Float[Tensor, "outputs inputs 3 3"],
    bias: Float[Tensor, " outputs"],
) -> Float[Tensor, "batch 4 outputs"]:
    """`reference.conv3x3` on 2x2 maps, as one dense product."""
    return F.linear(maps.flatten(1), dense_matrix(weight), bias.repeat(4)).unflatten(1, (4, -1))


def padded_width(num_classes: int) -> int:
    """Columns of the classes and the bias' one, rounded up to 8: tensor cores want rows of 16 bytes."""
    return -(-(num_classes + 1) // 8) * 8


def graph_conv(
    x: Float[Tensor, "batch nodes classes"],
    relations: Float[Tensor, "batch receivers relations nodes"],
    self_weight: Float[Tensor, "channels classes"],
    self_bias: Float[Tensor, " channels"],
    edge_weight: Float[Tensor, "channels_edges classes"],
    edge_bias: Float[Tensor, " channels_edges"],
) -> Float[Tensor, "batch receivers channels"]:
    """`reference.graph_conv`, neighbours summed first; `relations` may hold any subset of the receiving nodes.

    A column of ones beside the classes turns into each receiver's number of neighbours per relation, by which the
    edge bias must be multiplied; for the identity relation it is the plain bias.
    """
    channels, num_classes = self_weight.shape
    width = padded_width(num_classes)
    own = torch.cat([self_weight, self_bias[:, None]], 1)[:, None]
    edge = torch.cat([edge_weight, edge_bias[:, None]], 1).unflatten(0, (channels, -1))
    weight = F.pad(torch.cat([own, edge], 1), (0, width - num_classes - 1)).flatten(1)

    ones = x.new_ones(()).expand(*x.shape[:2], 1)
    zeros = x.new_zeros(()).expand(*x.shape[:2], width - num_classes - 1)
    summed = torch.bmm(relations.flatten(1, 2), torch.cat([x, ones, zeros], 2))
    return F.linear(summed.unflatten(1, relations.shape[1:3]).flatten(2), weight)
