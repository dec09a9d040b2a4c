"""DLRM (arXiv:1906.00091) as published by NVIDIA, and DLRM-DCNv2 of MLPerf."""

from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.batches.clicks import Clicks, EmbeddingTable
from src.config.ranges import Count
from src.errors import UserError
from src.gpu.triton_helpers import working_dtype
from src.models.dlrm.embeddings import Embeddings, PlainEmbeddings
from src.models.dlrm.interaction import cat_features, cross, dot_features, padded
from src.models.dlrm.mlp import MLP

Interaction = Literal["dot", "cat", "dcnv2"]
Dense = Float[Tensor, "batch dim"]
Sparse = Float[Tensor, "batch tables dim"]
Features = Float[Tensor, "batch features"]


class Dot(nn.Module):
    """The bottom MLP's output and the products of all pairs of vectors, padded with zeros.

    takes_lookup: whether its input may be a lookup that has not begun, in the place of the tables' vectors.
    """

    takes_lookup = False
    room = 0  # vectors, see `Embeddings`

    def __init__(self, num_tables: int, dim: int) -> None:
        super().__init__()
        self.width = dim + (num_tables + 1) * num_tables // 2
        self.num_features = padded(self.width)

    def forward(self, dense: Dense, sparse: Sparse, embeddings: Embeddings) -> Features:
        return dot_features(dense, sparse)


class Cat(nn.Module):
    """The concatenation of all vectors."""

    takes_lookup, room = False, 0

    def __init__(self, num_tables: int, dim: int) -> None:
        super().__init__()
        self.width = self.num_features = (num_tables + 1) * dim

    def forward(self, dense: Dense, sparse: Sparse, embeddings: Embeddings) -> Features:
        return cat_features(dense, sparse)


class CrossNet(nn.Module):
    """DCNv2's low-rank cross layers on the concatenated vectors; weights are Xavier normal, biases 0."""

    takes_lookup, room = False, 0

    def __init__(self, num_tables: int, dim: int, num_layers: int, rank: int) -> None:
        super().__init__()
        width = self.width = self.num_features = (num_tables + 1) * dim
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(num_layers))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(num_layers))
        for down, up in self.layers():
            nn.init.xavier_normal_(down.weight)
            nn.init.xavier_normal_(up.weight)
            nn.init.zeros_(up.bias)

    def layers(self) -> list[tuple[nn.Linear, nn.Linear]]:
        return cast(list[tuple[nn.Linear, nn.Linear]], list(zip(self.down, self.up, strict=True)))

    def forward(self, dense: Dense, sparse: Sparse, embeddings: Embeddings) -> Features:
        x = x0 = cat_features(dense, sparse)
        for down, up in self.layers():
            x = cross(x0, x, down.weight, up.weight, up.bias)
        return x


class DLRM(nn.Module):
    """The logit of a click: numerical features through the bottom MLP, categorical ones through their tables.

    The defaults are the published widths. With 26 tables the bottom MLP has 171,392 parameters, the top MLP 2,198,529.

    Args:
        bottom: widths of the bottom MLP; the last one is `embedding_dim`, as its output is one of the vectors.
        top: widths of the top MLP, without the last layer to one logit.
        interaction: `dot` as published, `cat`, or `dcnv2` with `cross_layers` of `cross_rank`.
        embeddings: constructs the tables' module from tables and dimension.

    Raises UserError for sizes that do not fit each other.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        num_numerical: Count = 13,
        embedding_dim: Count = 128,
        bottom: Sequence[Count] = (512, 256, 128),
        top: Sequence[Count] = (1024, 1024, 512, 256),
        interaction: Interaction = "dot",
        cross_layers: Count = 3,
        cross_rank: Count = 512,
        embeddings: Callable[[Sequence[EmbeddingTable], int], Embeddings] = PlainEmbeddings,
    ) -> None:
        super().__init__()
        if not tables or num_numerical < 1:
            raise UserError(f"DLRM needs numerical and categorical features, not {num_numerical} and {len(tables)}")
        if not bottom or bottom[-1] != embedding_dim:
            raise UserError(f"bottom={list(bottom)} must end with embedding_dim={embedding_dim}; change either of them")
        self.tables, self.embedding_dim = tuple(tables), embedding_dim
        self.bottom = MLP([num_numerical, *bottom])
        self.embeddings = embeddings(tables, embedding_dim)
        self.interaction = make_interaction(interaction, len(tables), embedding_dim, cross_layers, cross_rank)
        self.top = MLP([self.interaction.num_features, *top], logit=True)
        with torch.no_grad():  # the padding is 0, so its weights get no gradient and stay 0
            cast(Tensor, self.top.layers[0].weight)[:, self.interaction.width :] = 0

    def forward(self, clicks: Clicks) -> Float[Tensor, " batch"]:
        """Returns the logits, in float32 (float64 if the weights are)."""
        self.embeddings.room = self.interaction.room
        lookup = self.embeddings.start_lookup(clicks.ids, len(clicks.numerical))
        dense = self.bottom(clicks.numerical.to(working_dtype(cast(Tensor, self.bottom.layers[0].weight))))
        features = self.interaction(dense, lookup if self.interaction.takes_lookup else lookup(), self.embeddings)
        logits = self.top(features).squeeze(1)  # the gradient of an index would be written twice
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def dense_parameters(self) -> list[nn.Parameter]:
        """Returns all parameters but the tables, for an optimiser."""
        return [*self.bottom.parameters(), *self.interaction.parameters(), *self.top.parameters()]


def make_interaction(kind: str, num_tables: int, dim: int, cross_layers: int, cross_rank: int) -> Dot | Cat | CrossNet:
    """Returns the interaction of that kind. Raises UserError for an unknown kind."""
    if kind == "dot":
        return Dot(num_tables, dim)
    if kind == "cat":
        return Cat(num_tables, dim)
    if kind == "dcnv2":
        return CrossNet(num_tables, dim, cross_layers, cross_rank)
    raise UserError(f"interaction={kind} is unknown; give dot, cat or dcnv2")
