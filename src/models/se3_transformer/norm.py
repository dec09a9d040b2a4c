"""NormSE3: a nonlinearity on the norms of features that keeps directions-Transformer section 2.5)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.kernels import dispatch

SMALLEST = 2.0**-24  # lengths are clamped to the smallest positive float16
EPS = 1e-5  # added to the variance of the lengths; torch's default


class NormSE3(nn.Module):
    """Rescales every channel to ReLU(normalised length), the lengths normalised within each degree of a node.

    With equal channels this is a GroupNorm with one group per degree, else a LayerNorm per degree. `weight` and `bias`
    have one entry per channel, degree by degree. Lengths are computed in float32 or wider.
    """

    def __init__(self, fiber: Fiber) -> None:
        super().__init__()
        self.fiber = fiber
        channels = sum(count for _, count in fiber.items())
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        return dispatch.norm(features, self.weight, self.bias, self.fiber, SMALLEST, EPS)
