"""NormSE3 with NVIDIA's parameters: a GroupNorm for equal channels, else a LayerNorm for each degree."""

from typing import Any

import torch
from torch import Tensor, nn

from src.dropin.model.edges import ByName, by_name, flat
from src.dropin.model.fiber import Fiber, plain
from src.errors import UserError
from src.models.se3_transformer.fast.conv import kernels_for
from src.models.se3_transformer.norm import EPS, SMALLEST, normalised


class NormSE3(nn.Module):
    """Rescales every channel to ReLU(normalised length) and keeps its direction."""

    NORM_CLAMP = SMALLEST

    def __init__(self, fiber: Fiber, nonlinearity: nn.Module | None = None) -> None:
        super().__init__()
        if nonlinearity is not None and type(nonlinearity) is not nn.ReLU:
            raise UserError(f"nonlinearity={nonlinearity} is not supported; leave it out for ReLU")
        self.fiber, self.plain_fiber = fiber, plain(fiber)
        if len(set(fiber.channels)) == 1:
            self.group_norm = nn.GroupNorm(len(fiber.degrees), sum(fiber.channels))
        else:
            self.layer_norms = nn.ModuleDict({str(degree): nn.LayerNorm(channels) for degree, channels in fiber})

    def forward(self, features: ByName, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        norms = [self.group_norm] if hasattr(self, "group_norm") else [self.layer_norms[str(d)] for d in self.degrees]
        weight, bias = (torch.cat([getattr(norm, name) for norm in norms]) for name in ("weight", "bias"))
        joined = flat(features, self.plain_fiber, weight.dtype)
        fiber, kernels = self.plain_fiber, kernels_for("norm", joined, "norm")
        function = kernels.norm if kernels and kernels.supported(fiber) else normalised
        return by_name(function(joined, weight, bias, fiber, SMALLEST, EPS), fiber, kwargs.get("graph"))

    @property
    def degrees(self) -> tuple[int, ...]:
        return self.plain_fiber.degrees
