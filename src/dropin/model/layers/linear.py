"""LinearSE3 with NVIDIA's parameters: one matrix for each degree, drawn in the order of the output fiber."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from src.dropin.model.edges import ByName, by_name, flat
from src.dropin.model.fiber import Fiber, plain
from src.errors import UserError
from src.models.se3_transformer.linear import LinearSE3 as PlainLinearSE3


class LinearSE3(PlainLinearSE3):
    """Mixes the channels of each output degree.

    Args:
        sources: fibers of several flat inputs, whose channels add up to `fiber_in`'s in this order.
    """

    def __init__(self, fiber_in: Fiber, fiber_out: Fiber, sources: tuple[Fiber, ...] | None = None) -> None:
        nn.Module.__init__(self)
        weights = {}
        for degree, channels in fiber_out:
            if not fiber_in[degree]:
                raise UserError(f"degree {degree} of the output {fiber_out} is not in the input {fiber_in}")
            drawn = torch.randn(channels, fiber_in[degree]) / math.sqrt(fiber_in[degree])
            weights[str(degree)] = nn.Parameter(drawn)
        self.weights = nn.ParameterDict(weights)
        self.fiber_in, self.fiber_out = plain(fiber_in), plain(fiber_out)
        self.sources = tuple(plain(source) for source in sources or (fiber_in,))
        same_degrees = all(source.degrees == self.fiber_out.degrees for source in self.sources)
        self.batched = same_degrees and all(fiber.equal_channels for fiber in (*self.sources, self.fiber_out))

    def forward(self, features: ByName | Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns features by name of features by name, or flat ones of flat ones (`sources`)."""
        if isinstance(features, Tensor):
            return super().forward(features, *args)
        joined = flat(features, self.fiber_in, next(self.parameters()).dtype)
        return by_name(super().forward(joined), self.fiber_out, kwargs.get("graph"))
