"""The atom step with neighbours summed first, and without the rows that it does not need.

The graph convolution is linear, so neighbours are summed over the few atom classes first and the wide product runs once
per receiver instead of once per node and edge type.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from src.models.moflow.atom import AtomStep, GraphConv


def padded_width(num_classes: int) -> int:
    """Returns the number of classes plus the bias column, rounded up to 8: tensor cores need rows of 16 bytes."""
    return -(-(num_classes + 1) // 8) * 8


class FastGraphConv(GraphConv):
    """GraphConv with neighbours summed first; `relations` may hold a subset of the receivers.

    A column of ones next to the classes sums to each receiver's number of neighbours per relation, which multiplies
    the edge bias; for the identity relation it is 1.
    """

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], relations: Float[Tensor, "batch receivers relations nodes"]
    ) -> Float[Tensor, "batch receivers channels"]:
        channels, num_classes = self.self_linear.weight.shape
        width = padded_width(num_classes)
        node = torch.cat([self.self_linear.weight, self.self_linear.bias[:, None]], 1)[:, None]
        edge = torch.cat([self.edge_linear.weight, self.edge_linear.bias[:, None]], 1).unflatten(0, (channels, -1))
        weight = F.pad(torch.cat([node, edge], 1), (0, width - num_classes - 1)).flatten(1)

        ones = x.new_ones(()).expand(*x.shape[:2], 1)
        zeros = x.new_zeros(()).expand(*x.shape[:2], width - num_classes - 1)
        summed = torch.bmm(relations.flatten(1, 2), torch.cat([x, ones, zeros], 2))
        return F.linear(summed.unflatten(1, relations.shape[1:3]).flatten(2), weight)


class FastAtomStep(AtomStep):
    """AtomStep that computes no rows but its own where it needs no others; its GraphConv must be a FastGraphConv.

    A chain calls AtomStep's own `forward` and `reverse`, so they are not for this class to override.
    """

    def outputs(
        self,
        x: Float[Tensor, "batch nodes classes"],
        relations: Float[Tensor, "batch nodes relations nodes"],
        row_only: bool,
    ) -> Float[Tensor, "batch rows outputs"]:
        if not row_only:
            return super().outputs(x, relations, row_only)
        return self.perceptron(self.graph_conv(x, relations.index_select(1, self.row)), self.row)
