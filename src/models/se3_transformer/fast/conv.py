"""Convolutions in edge-aligned frames, where the basis is sparse (see `basis`): the same function, faster.

Triton kernels rotate, multiply and sum; where they support neither device, dtype nor shape, plain torch does, in the
same frames. This module imports no Triton, so that plain torch is left where that is not installed.
"""

from functools import cached_property
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.gpu.triton_helpers import can_take, lacks, package, working_dtype
from src.models.se3_transformer.conv import ConvSE3, EdgeFeatures, Geometry, sum_incoming
from src.models.se3_transformer.fast.frames import EdgeLayout, edge_wigner, has_frames
from src.models.se3_transformer.fast.plan import Plan


class FastConvSE3(ConvSE3):
    """Computes in edge frames, but for a geometry that has none; without gradients of the positions.

    The messages of edges of length 0 (`geometry.null`) are computed apart: they have any frame, and J = 0 alone.
    """

    @cached_property
    def plans(self) -> list[Plan]:
        return plans_of(self)

    def summed(
        self, features: Float[Tensor, "nodes features"], geometry: Geometry, edge_features: EdgeFeatures
    ) -> Float[Tensor, "nodes outputs"]:
        if not has_frames(geometry):
            return super().summed(features, geometry, edge_features)
        columns, _ = self.edge_messages(features, geometry, edge_features)
        (layout,) = self.plans[0].outputs
        return sum_from_edges(columns, geometry.once(edge_wigner), geometry.graph, layout)

    def messages(
        self, features: Float[Tensor, "nodes features"], geometry: Geometry, edge_features: EdgeFeatures
    ) -> Float[Tensor, "edges outputs"]:
        if not has_frames(geometry):
            return super().messages(features, geometry, edge_features)
        (columns, _), layouts = self.edge_messages(features, geometry, edge_features), self.plans[0].outputs
        parts = columns.split([layout.num_features for layout in layouts], 1)
        wigner = geometry.once(edge_wigner)
        return torch.cat([layout.from_edge(part, wigner) for layout, part in zip(layouts, parts, strict=True)], 1)

    def edge_messages(
        self,
        features: Float[Tensor, "nodes features"],
        geometry: Geometry,
        edge_features: EdgeFeatures = None,
    ) -> tuple[Float[Tensor, "edges columns"], Float[Tensor, "nodes features"]]:
        """Returns the messages in the edge frames: the columns of the plans' outputs, one after the other.

        And the features for their other uses, whose gradient is then added by the kernel.
        """
        wigner, source = geometry.once(edge_wigner), self.plans[0].source
        features = features.to(working_dtype(features))
        if self.edge_fiber:
            joined = self.with_edge_features(features[geometry.graph.src], edge_features)
            columns = source.to_edge(joined, wigner)
        else:
            columns, features = gather_to_edges(features, wigner, geometry.graph, source)
        messages = None
        for radial, plan in zip(self.radial_groups(), self.plans, strict=True):
            hidden = radial.hidden(geometry.radial_inputs)
            with torch.autocast(hidden.device.type, enabled=False):
                part = contract(hidden, columns, radial.weight, plan)
                if (null := geometry.null) is not None:
                    of_null = plan.null_messages(hidden[null], columns[null], radial.weight)
                    part = part.index_copy(0, null, of_null.to(part.dtype))
            messages = part if messages is None else messages + part
        assert messages is not None
        return messages, features


def plans_of(convolution: ConvSE3) -> list[Plan]:
    """Returns the plan of each group of a convolution. They have the same layouts."""
    inputs, outputs = convolution.fiber_in, convolution.fiber_out
    source = EdgeLayout(inputs, min(inputs.max_degree, outputs.max_degree))
    layouts = tuple(EdgeLayout(fiber, inputs.max_degree) for fiber in convolution.outputs)
    return [Plan(radial.group, source, layouts) for radial in convolution.radial_groups()]


def kernels_for(name: str, tensor: Tensor, module: str) -> ModuleType | None:
    """Returns a module of this package if its kernels support the tensor's device and dtype (`can_take`), else None."""
    return package(f"{__package__}.{module}") if can_take(name, tensor) else None


def contract(
    hidden: Float[Tensor, "edges mid"], columns: Float[Tensor, "edges inputs"], weight: Float[Tensor, "rows mid"],
    plan: Plan,
) -> Float[Tensor, "edges outputs"]:  # fmt: skip
    """Computes `plan.contract` with the group's radial weights; the result has the dtype of `columns`."""
    if contraction := kernels_for("conv", columns, "contraction"):
        if contraction.supported(plan, hidden.shape[1]):
            return contraction.contract(hidden, columns, contraction.mix(weight, plan), plan)
        lacks("conv", columns, f"{plan.group} with {hidden.shape[1]} hidden channels")
    dtype = columns.dtype
    return plan.contract(hidden.to(dtype), columns, plan.mix(weight).to(dtype))


def gather_to_edges(
    features: Float[Tensor, "nodes features"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> tuple[Float[Tensor, "edges columns"], Float[Tensor, "nodes features"]]:
    """Returns the source nodes' features in the edge frames, and the features for their other uses."""
    if layout.fiber.degrees == (0,):  # scalars do not rotate
        return features[graph.src], features
    if edges := kernels_for("conv", features, "edges"):
        if edges.supported(layout):
            return edges.gather_to_edges(features, wigner, graph, layout)
        lacks("conv", features, layout.fiber)
    return layout.to_edge(features[graph.src], wigner), features


def sum_from_edges(
    columns: Float[Tensor, "edges columns"], wigner: Float[Tensor, "edges packed"], graph: Graph, layout: EdgeLayout
) -> Float[Tensor, "nodes features"]:
    """Rotates features from the edge frames into the common frame and sums them over incoming edges."""
    if edges := kernels_for("conv", columns, "edges"):
        if edges.supported(layout):
            return edges.sum_from_edges(columns, wigner, graph, layout)
        lacks("conv", columns, layout.fiber)
    return sum_incoming(layout.from_edge(columns, wigner), graph)
