"""GPooling: the average or maximum of a degree's features over each graph of a batch."""

from typing import Any

from torch import Tensor, nn

from src.dropin.graphs import topology_of
from src.dropin.model.edges import ByName
from src.errors import UserError
from src.models.se3_transformer.pooling import pool as pool_rows


class GPooling(nn.Module):
    """Returns [graphs, channels] for degree 0, else [graphs, channels, components]."""

    def __init__(self, feat_type: int = 0, pool: str = "max") -> None:
        super().__init__()
        if pool not in ("max", "avg"):
            raise UserError(f"pooling={pool} is not allowed; expected max or avg")
        if feat_type and pool == "max":
            raise UserError(f"pooling=max of degree {feat_type} would break the symmetry; give avg")
        self.feat_type, self.kind = feat_type, pool

    def forward(self, features: ByName, graph: Any, **kwargs: Any) -> Tensor:
        rows = features[str(self.feat_type)]
        pooled = pool_rows(rows.flatten(1), topology_of(graph)[0].graph_ptr, "max" if self.kind == "max" else "mean")
        return pooled.unflatten(1, rows.shape[1:]).squeeze(-1)
