"""DLRM for export.py: the layers as a graph, the tables as safetensors beside it."""

from typing import Any, cast

from torch import Tensor, nn

from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.network import DLRM
from src.training.export import Export, Inputs, Outputs, TensorGraph

TABLES = "embeddings.weights."  # before a table's number, in the state_dict


class Layers(nn.Module):
    """Numerical features and the vector of each table, summed over a row's ids, to the logit of a click."""

    def __init__(self, network: DLRM) -> None:
        super().__init__()
        self.bottom, self.interaction, self.top = network.bottom, network.interaction, network.top
        self.unread = (network.embeddings,)  # no submodule, so that no graph holds the tables

    def forward(self, numerical: Tensor, vectors: Tensor) -> Tensor:
        return self.top(self.interaction(self.bottom(numerical), vectors, *self.unread))[:, 0]


def exported(task: Any) -> Export:
    """Returns the layers, and the tables with their names and sizes."""
    network = task.network
    embeddings = cast(PlainEmbeddings, network.embeddings)

    def example(batch: int) -> tuple[Inputs, Outputs]:
        clicks = task.example_batch(batch).clicks()
        numerical = clicks.numerical.float()
        return {"numerical": numerical, "vectors": embeddings(clicks.ids, batch).float()}, (network(clicks),)

    rows = {0: "rows"}
    tables = [
        {"tensor": f"{TABLES}{number}", "name": table.name, "cardinality": table.cardinality, "hotness": table.hotness}
        for number, table in enumerate(network.tables)
    ]
    beside = {f"{TABLES}{number}": weight.detach() for number, weight in enumerate(embeddings.weights)}
    return Export(
        preprocessing={"numerical": task.layout.num_numerical, "tables": tables, "vectors": "sum of a row's ids"},
        graph=TensorGraph(Layers(network), example, {"numerical": rows, "vectors": rows}, ("logit",), beside),
        refused={"hf": "transformers has no such model, and a graph of its hub has no place for tables"},
        pipeline="tabular-classification",
    )
