"""NormSE3 as one kernel for each of forward and backward."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.partial_sums import sum_partials
from src.gpu.second_gradients import gradients_by
from src.gpu.triton_helpers import can_take, launch, power_of_2
from src.models.se3_transformer.fast import norm_triton as kernels
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.norm import EPS, SMALLEST, NormSE3, normalised

MAX_TILE = 2048  # elements: degrees up to 4 with 64 channels, or up to 1 with 512
ELEMENTS = 256  # of a component's tile in one warp: 16 bytes of half precision for each thread
PROGRAMS = 1056  # for each degree in the backward pass: eight per multiprocessor of an H200


class FastNormSE3(NormSE3):
    """Computes in float32, of features in equal channels that fit a tile."""

    def forward(self, features: Float[Tensor, "nodes features"]) -> Float[Tensor, "nodes features"]:
        if not can_take("norm", features, supported(self.fiber), fiber=self.fiber):
            return super().forward(features)
        return norm(features, self.weight, self.bias, self.fiber, SMALLEST, EPS)


def supported(fiber: Fiber) -> bool:
    """Returns whether the features are one rectangle of few enough elements."""
    channels = fiber.equal_channels
    if fiber.degrees != tuple(range(len(fiber))) or channels is None or len(fiber) > 5:
        return False
    return power_of_2(len(fiber) ** 2) * power_of_2(channels) <= MAX_TILE


def shape_of(fiber: Fiber) -> dict[str, int]:
    """Returns the shapes of the features and of a tile."""
    channels = fiber.equal_channels
    assert channels is not None
    width = power_of_2(channels)
    return {"DEGREES": len(fiber), "CHANNELS": channels, "WIDTH": width, "BN": max(1, ELEMENTS // width)}


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, fiber: Fiber, smallest: float, eps: float
    ) -> Tensor:
        ctx.save_for_backward(features, weight, bias)
        ctx.fiber, ctx.constants = fiber, (smallest, eps)
        out, shape = torch.empty_like(features), shape_of(fiber)
        launch(kernels.norm, (-(-len(features) // shape["BN"]), shape["DEGREES"]), 
            features, weight, bias, out, len(features), smallest, eps, **shape, num_warps=1,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            plain = partial(normalised, fiber=ctx.fiber, smallest=ctx.constants[0], eps=ctx.constants[1])
            return *gradients_by(plain, (features, weight, bias), grads[0]), None, None, None
        grad, grad_features = grads[0].contiguous(), torch.empty_like(features)
        shape = shape_of(ctx.fiber)
        blocks = -(-len(features) // (shape["BN"] * PROGRAMS))
        programs = -(-len(features) // (shape["BN"] * blocks)) if blocks else 0
        partials = features.new_empty(programs, 2, len(weight), dtype=torch.float32)
        launch(kernels.norm_backward, (programs, shape["DEGREES"]), 
            features, weight, bias, grad, grad_features, partials, len(features), blocks, *ctx.constants, **shape,
            num_warps=1,
        )  # fmt: skip
        grad_weight, grad_bias = sum_partials(partials).to(weight.dtype)
        return grad_features, grad_weight, grad_bias, None, None, None


def norm(
    features: Float[Tensor, "nodes features"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
    fiber: Fiber,
    smallest: float,
    eps: float,
) -> Float[Tensor, "nodes features"]:
    """Computes `normalised` of the plain module for equal channels, in float32."""
    return Norm.apply(features.contiguous(), weight, bias, fiber, smallest, eps)  # type: ignore[return-value]
