"""The atom flow: a step transforms one node row, given the other rows and the graph."""

from itertools import pairwise
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from src.errors import UserError
from src.models.moflow.actnorm import ActNorm, BatchNorm
from src.models.moflow.flow import FlowChain, FlowStep, Limit

LogDet = Literal["published", "exact"]


def relations_of(adj: Float[Tensor, "batch kinds nodes nodes"]) -> Float[Tensor, "batch nodes 1+kinds nodes"]:
    """Returns the adjacency as [receiver, relation, sender], with the identity as relation 0.

    In half precision under autocast, because otherwise every step would convert it. 0 and 1 are exact in it.
    """
    device = adj.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else adj.dtype
    identity = torch.eye(adj.shape[-1], dtype=dtype, device=adj.device)[:, None].expand(adj.shape[0], -1, -1, -1)
    return torch.cat([identity, adj.to(dtype).transpose(1, 2)], 2).contiguous()


class GraphConv(nn.Module):
    """Relational graph convolution: X W_0 + sum_i B_i X W_i over the edge types i, each Linear with a bias.

    The edge type is the fastest index of `edge_linear`'s outputs.
    """

    def __init__(self, num_classes: int, num_kinds: int, channels: int) -> None:
        super().__init__()
        self.self_linear = nn.Linear(num_classes, channels)
        self.edge_linear = nn.Linear(num_classes, channels * num_kinds)

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], relations: Float[Tensor, "batch receivers relations nodes"]
    ) -> Float[Tensor, "batch receivers channels"]:
        """Returns a row of features for each receiver, here every node: its own, plus the sum of received messages."""
        messages = self.edge_linear(x).unflatten(2, (self.self_linear.out_features, -1))
        received = torch.einsum("bmen,bnce->bmc", relations[:, :, 1:], messages)
        return self.self_linear(x) + received


class AtomStep(FlowStep):
    """ActNorm over nodes, then an affine coupling of one node row."""

    row: Int64[Tensor, " 1"]
    is_row: Bool[Tensor, "nodes 1"]

    def __init__(
        self,
        num_nodes: int,
        num_classes: int,
        num_kinds: int,
        row: int,
        gnn_channels: int,
        hidden: tuple[int, ...],
        logdet: LogDet,
    ) -> None:
        super().__init__()
        self.actnorm = ActNorm(num_nodes, 1)
        self.graph_conv = GraphConv(num_classes, num_kinds, gnn_channels)
        self.widths = (gnn_channels, *hidden, 2 * num_classes)
        self.norms = nn.ModuleList(BatchNorm(num_nodes) for _ in self.widths[:-1])
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(self.widths))
        self.logdet = logdet
        # Tensors, not numbers: one compiled graph serves the steps of all rows.
        self.register_buffer("row", torch.tensor([row]), persistent=False)
        self.register_buffer("is_row", torch.arange(num_nodes)[:, None] == row, persistent=False)

    def _scale_and_shift(
        self,
        x: Float[Tensor, "batch nodes classes"],
        relations: Float[Tensor, "batch nodes relations nodes"],
        row_only: bool,
    ) -> tuple[Float[Tensor, "batch rows classes"], Float[Tensor, "batch rows classes"]]:
        """Returns scale logits and shifts of all rows, or only of the step's own row."""
        outputs = self.outputs(x.masked_fill(self.is_row, 0), relations, row_only)
        scale_logits, shift = outputs.to(x.dtype).chunk(2, 2)
        return scale_logits, shift

    def outputs(
        self,
        x: Float[Tensor, "batch nodes classes"],
        relations: Float[Tensor, "batch nodes relations nodes"],
        row_only: bool,
    ) -> Float[Tensor, "batch rows outputs"]:
        """Returns what the coupling's network makes of the other rows, for all rows or only for the step's own.

        A BatchNorm channel is a node, so the own row's outputs do not depend on the other rows' hidden values. With
        `row_only` these are no part of the model: they are dropped, and their statistics are not updated.
        """
        outputs = self.perceptron(self.graph_conv(x, relations), self.row if row_only else None)
        return outputs.index_select(1, self.row) if row_only else outputs

    def perceptron(
        self, hidden: Float[Tensor, "batch rows channels"], row: Int64[Tensor, " 1"] | None
    ) -> Float[Tensor, "batch rows outputs"]:
        """Applies the layers behind the graph convolution; `row`: see `BatchNorm`."""
        for norm, linear in zip(self.norms, self.linears, strict=True):
            hidden = linear(F.relu(norm(hidden, row)))
        return hidden

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], relations: Float[Tensor, "batch nodes relations nodes"]
    ) -> tuple[Float[Tensor, "batch nodes classes"], Float[Tensor, " batch"]]:
        """Returns the sample with its row transformed, and its log-determinant.

        `exact` sums the terms of the transformed row, `published` those of all rows, as the original code does.
        """
        x, log_det = self.actnorm(x)
        scale_logits, shift = self._scale_and_shift(x, relations, row_only=self.logdet == "exact")
        x = torch.where(self.is_row, (x + shift) * torch.sigmoid(scale_logits), x)
        return x, log_det + F.logsigmoid(scale_logits).sum((1, 2))

    def reverse(
        self, z: Float[Tensor, "batch nodes classes"], relations: Float[Tensor, "batch nodes relations nodes"]
    ) -> Float[Tensor, "batch nodes classes"]:
        """Inverts `forward`."""
        scale_logits, shift = self._scale_and_shift(z, relations, row_only=True)
        z = torch.where(self.is_row, z * (1 + torch.exp(-scale_logits)) - shift, z)
        return self.actnorm.reverse(z)


class AtomFlow(FlowChain):
    """The flow over atom classes given the clean adjacency; step i transforms node row i mod `num_nodes`."""

    def __init__(
        self,
        num_nodes: int,
        num_classes: int,
        num_kinds: int,
        num_flows: int,
        gnn_channels: int,
        hidden: tuple[int, ...],
        logdet: LogDet,
    ) -> None:
        if logdet not in ("published", "exact"):
            raise UserError(f"logdet={logdet} must be published or exact")
        rows = [index % num_nodes for index in range(num_flows)]
        shape = (num_nodes, num_classes, num_kinds)
        super().__init__([AtomStep(*shape, row, gnn_channels, hidden, logdet) for row in rows])

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], adj: Float[Tensor, "batch kinds nodes nodes"]
    ) -> tuple[Float[Tensor, "batch nodes classes"], Float[Tensor, " batch"]]:
        """Returns the latent and the log-determinant of each sample."""
        return self.run(x, relations_of(adj))

    def reverse(
        self,
        z: Float[Tensor, "batch nodes classes"],
        adj: Float[Tensor, "batch kinds nodes nodes"],
        limit: Limit | None = None,
    ) -> Float[Tensor, "batch nodes classes"]:
        """Inverts `forward`; returns continuous atom classes. `limit`: see `FlowChain.run_reverse`."""
        return self.run_reverse(z, relations_of(adj), limit=limit)

    def scaled(self, x: Float[Tensor, "batch rows classes"], first: int) -> Float[Tensor, "batch rows classes"]:
        """Returns the latents of the node rows from `first` on where no step transforms them: the ActNorms' part.

        All steps at once, in a quarter of the launches of one by one: a latent is multiplied by the scales of all
        steps, and the loc of a step by those from it on.
        """
        norms = [cast(AtomStep, step).actnorm for step in self.steps]
        loc, scale = (torch.stack([getattr(norm, name) for norm in norms])[:, first:] for name in ("loc", "scale"))
        # cumprod would be shorter, but its backward pass waits for the device; signs have none.
        signs = scale.detach().sign().flip(0).cumprod(0).flip(0)
        is_later = torch.ones(len(norms), len(norms), dtype=scale.dtype, device=scale.device).triu()
        factors = signs * (is_later[:, :, None, None] * scale.abs().log()).sum(1).exp()
        return factors[0] * x + (factors * loc).sum(0)
