"""An SE(3)-Transformer in a training loop that is not ours: forward and backward pass as CUDA graphs.

A batch of 240 molecules is more than a thousand kernels, which take the host longer to launch than the GPU to run. Our
own training captures the whole step instead, so this is no name of `execution.kernels`.
"""

import torch
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.gpu import training_graphs
from src.gpu.hooks import hooked, uncompiled
from src.gpu.triton_helpers import working_dtype
from src.models.se3_transformer.network import Features, SE3Transformer


class GraphedSE3Transformer(SE3Transformer):
    """Runs as CUDA graphs where it returns one tensor, scalars come in, and positions need no gradient."""

    def forward(
        self, graph: Graph, node_features: Features, edge_features: Features | None = None
    ) -> Tensor | dict[int, Tensor]:
        features = node_features, edge_features
        tensors = [*graph[:7], *(x for x in features if isinstance(x, Tensor))]
        others = [x for x in features if x is not None and not isinstance(x, Tensor)]
        if (
            others
            or self.return_type is None
            or self.low_memory
            or not graph.positions.is_cuda
            or any(x.requires_grad for x in tensors)
            or any(hooked(module) for module in self.modules())
            or torch.cuda.is_current_stream_capturing()
        ):
            return super().forward(graph, node_features, edge_features)
        return self.graphed(graph, tensors)

    @uncompiled
    def graphed(self, graph: Graph, tensors: list[Tensor]) -> Tensor:
        names, parameters = zip(*self.named_parameters(), strict=True)

        def function(inputs: training_graphs.Tensors, weights: training_graphs.Tensors) -> Tensor:
            batch = Graph(*inputs[:7], distinct=graph.distinct)  # type: ignore[arg-type]
            if weights is parameters:
                return SE3Transformer.forward(self, batch, *inputs[7:])  # type: ignore[return-value]
            return torch.func.functional_call(self, dict(zip(names, weights, strict=True)), (batch, *inputs[7:]))

        key = working_dtype(parameters[0]), graph.distinct, len(tensors)
        return training_graphs.run(self, function, tensors, parameters, key)
