"""LinearSE3 as one kernel, with one for each gradient."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.second_gradients import gradients_by
from src.gpu.triton_helpers import can_take, launch, power_of_2, precision, working_dtype
from src.models.se3_transformer.fast import linear_triton as kernels
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.linear import LinearSE3, multiply

NODES = 64  # per tile
SPLITS = 16  # parts of the nodes with partial weight gradients, computed in parallel and added in a fixed order


class FastLinearSE3(LinearSE3):
    """Multiplies all degrees 0, 1, .. of one or two inputs at once, in autocast's dtype or that of the first input."""

    def forward(self, *features: Float[Tensor, "nodes _"]) -> Float[Tensor, "nodes features_out"]:
        if not self.batched:
            return super().forward(*features)
        dtype, degrees = working_dtype(features[0]), len(self.fiber_out)
        features = tuple(x.to(dtype) for x in features)
        is_complete = self.fiber_out.degrees == tuple(range(degrees))
        channels = tuple(x.shape[1] // degrees**2 for x in features)
        is_supported = is_complete and supported(channels, self.fiber_out.channels(0))
        if not can_take("linear", features[0], is_supported, channels=channels, outputs=self.fiber_out):
            return super().forward(*features)
        return linear(features, self.stacked())


def supported(channels: tuple[int, ...], outer: int) -> bool:
    """Returns whether one or two inputs with these channels fit a tile."""
    return len(channels) <= 2 and max(*channels, outer) <= 128


def tile_width(channels: int) -> int:
    return max(16, power_of_2(channels))


@cache
def degree_of_component(degrees: int, device: torch.device) -> Tensor:
    """Returns the degree of each component, int32 [degrees^2]."""
    sizes = 2 * torch.arange(degrees) + 1
    return torch.arange(degrees).repeat_interleave(sizes).to(device, torch.int32)


@cache
def degree_mask(degrees: int, device: torch.device) -> Float[Tensor, "degrees components"]:
    """Returns 1 where a component belongs to a degree, else 0."""
    return (degree_of_component(degrees, device) == torch.arange(degrees, device=device)[:, None]).float()


def products(inputs: tuple[Tensor, ...], matrices: Tensor, begin: int, strides: tuple[int, int], outer: int) -> Tensor:
    """Multiplies the inputs [nodes, components, channels] by parts of `matrices` [degrees, _, _].

    `begin`: offset of the part in elements; `strides`: of the part's inner and outer dimension.
    """
    first, second = inputs[0], inputs[-1]
    nodes, components, inner = first.shape
    inner2 = second.shape[2] if len(inputs) > 1 else 0
    out = first.new_empty(nodes, components, outer)
    launch(kernels.linear, (-(-nodes // NODES), components), 
        first, second, matrices.view(-1)[begin:], degree_of_component(len(matrices), first.device), out, nodes,
        components, matrices.stride(0), *strides, inner, INNER_1=inner, INNER_2=inner2, WIDTH_1=tile_width(inner),
        WIDTH_2=tile_width(max(inner2, 1)), OUTER=outer, WIDTH_OUT=tile_width(outer), BN=NODES,
        PRECISION=precision(first.dtype), num_warps=4,
    )  # fmt: skip
    return out


class Linear(torch.autograd.Function):
    """Applies weights [degrees, outer, all inputs' channels] to one or two inputs [nodes, components, channels]."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *inputs: Tensor) -> Tensor:
        matrices = weights.to(inputs[0].dtype).contiguous()
        ctx.save_for_backward(weights, matrices, *inputs)
        return products(inputs, matrices, 0, (1, matrices.shape[2]), matrices.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, matrices, *inputs = ctx.saved_tensors
        degrees, outer, columns = matrices.shape
        if torch.is_grad_enabled():  # create_graph=True
            return gradients_by(plain, (weights, *inputs), grads[0])
        grad = grads[0].to(matrices.dtype).contiguous()
        nodes, components, _ = grad.shape
        blocks = -(-nodes // (NODES * SPLITS))
        partials = grad.new_empty(SPLITS, components, outer, columns, dtype=torch.float32)
        grad_inputs: list[Tensor | None] = []
        begin = 0
        for number, x in enumerate(inputs):
            inner = x.shape[2]
            needs_gradient = ctx.needs_input_grad[1 + number]
            grad_inputs.append(products((grad,), matrices, begin, (columns, 1), inner) if needs_gradient else None)
            launch(kernels.linear_backward_weight, (components, SPLITS), 
                grad, x, partials, nodes, components, blocks, columns, begin, OUTER=outer, INNER=inner,
                WIDTH_OUT=tile_width(outer), WIDTH=tile_width(inner), BN=NODES, PRECISION=precision(x.dtype),
                num_warps=4,
            )  # fmt: skip
            begin += inner
        # A sum, not a product with `degree_mask`, which TF32 would round.
        of_degree = (degree_mask(degrees, grad.device)[:, :, None, None] * partials.sum(0)).sum(1)
        return of_degree.to(weights.dtype), *grad_inputs


def plain(
    weights: Float[Tensor, "degrees outer inner"], *inputs: Float[Tensor, "nodes components _"]
) -> Float[Tensor, "nodes components outer"]:
    """Computes the function of `Linear` in plain torch."""
    fiber = Fiber.create(len(weights), weights.shape[1])
    flat = multiply(tuple(x.flatten(1) for x in inputs), weights.to(inputs[0].dtype), fiber)
    return flat.unflatten(1, (len(weights) ** 2, -1))


def linear(
    inputs: tuple[Float[Tensor, "nodes _"], ...], weights: Float[Tensor, "degrees outer inner"]
) -> Float[Tensor, "nodes features"]:
    """Computes `multiply` of the plain module for one or two inputs of degrees 0, 1, .."""
    components = len(weights) ** 2
    return Linear.apply(weights, *(x.unflatten(1, (components, -1)).contiguous() for x in inputs)).flatten(1)  # type: ignore[union-attr]
