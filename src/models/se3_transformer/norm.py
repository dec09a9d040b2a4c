"""NormSE3: a nonlinearity on the norms of features that keeps directions (arXiv:2006.10503, section 3.2)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.models.se3_transformer.fiber import Fiber

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
        return normalised(features, self.weight, self.bias, self.fiber, SMALLEST, EPS)


def normalised(
    features: Float[Tensor, "nodes features"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
    fiber: Fiber,
    smallest: float,
    eps: float,
) -> Float[Tensor, "nodes features"]:
    """Rescales every channel to ReLU(normalised length), see `NormSE3`. Lengths are clamped to `smallest`."""
    wide = torch.promote_types(features.dtype, torch.float32)
    counts = [count for _, count in fiber.items()]
    parts = [fiber.part(features, degree).to(wide) for degree in fiber]
    lengths = torch.cat([part.square().sum(1) for part in parts], 1).clamp_min(smallest**2).sqrt()
    weight, bias = weight.to(wide), bias.to(wide)
    if fiber.equal_channels:
        scaled_lengths = F.group_norm(lengths, len(counts), weight, bias, eps)
    else:
        columns = zip(*(x.split(counts, d) for x, d in ((lengths, 1), (weight, 0), (bias, 0))), counts, strict=True)
        scaled_lengths = torch.cat([F.layer_norm(part, (count,), w, b, eps) for part, w, b, count in columns], 1)
    scales = (F.relu(scaled_lengths) / lengths).split(counts, 1)
    scaled = [(part * scale[:, None]).flatten(1) for part, scale in zip(parts, scales, strict=True)]
    return torch.cat(scaled, 1).to(features.dtype)
