"""LinearSE3 as one kernel, with one for each input's gradient and two for that of the matrices."""

from collections.abc import Sequence
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
SPLITS = 32  # parts of the nodes with partial weight gradients, added in a fixed order; a power of 2
BLOCK = 64  # elements of a matrix whose partial gradients a program adds
MAX_SUMS = 16384  # elements that 4 warps hold: 128 registers a thread


class FastLinearSE3(LinearSE3):
    """Multiplies all degrees 0, 1, .. of one or two inputs at once, in autocast's dtype or that of the first input."""

    def forward(self, *features: Float[Tensor, "nodes _"]) -> Float[Tensor, "nodes features_out"]:
        return self.passing(*features)[0]

    def passing(
        self, *features: Float[Tensor, "nodes _"]
    ) -> tuple[Float[Tensor, "nodes features_out"], Float[Tensor, "nodes _"]]:
        if not self.batched:
            return super().forward(*features), features[0]
        dtype, degrees = working_dtype(features[0]), len(self.fiber_out)
        features = tuple(x.to(dtype) for x in features)
        is_complete = self.fiber_out.degrees == tuple(range(degrees))
        channels = tuple(x.shape[1] // degrees**2 for x in features)
        is_supported = is_complete and supported(channels, self.fiber_out.channels(0))
        if not can_take("linear", features[0], is_supported, channels=channels, outputs=self.fiber_out):
            return super().forward(*features), features[0]
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


def products(
    inputs: tuple[Tensor, ...], matrices: Tensor, begin: int, strides: tuple[int, int], outer: int,
    added: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Multiplies the inputs [nodes, components, channels] by parts of `matrices` [degrees, _, _].

    `begin`: offset of the part in elements; `strides`: of the part's inner and outer dimension; `added`: to the result.
    """
    first, second = inputs[0], inputs[-1]
    nodes, components, inner = first.shape
    inner2 = second.shape[2] if len(inputs) > 1 else 0
    out = first.new_empty(nodes, components, outer)
    launch(kernels.linear, (-(-nodes // NODES), components), 
        first, second, matrices.view(-1)[begin:], degree_of_component(len(matrices), first.device),
        out if added is None else added, out, nodes, components, matrices.stride(0), *strides, inner,
        ADD=added is not None, INNER_1=inner, INNER_2=inner2, WIDTH_1=tile_width(inner),
        WIDTH_2=tile_width(max(inner2, 1)), OUTER=outer, WIDTH_OUT=tile_width(outer), BN=NODES,
        PRECISION=precision(first.dtype), num_warps=4,
    )  # fmt: skip
    return out


class Linear(torch.autograd.Function):
    """Applies weights [degrees, outer, all inputs' channels] to one or two inputs [nodes, components, channels].

    Returns the first input too.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        weights = weights.contiguous()
        ctx.save_for_backward(weights, *inputs)
        ctx.set_materialize_grads(False)
        return products(inputs, weights, 0, (1, weights.shape[2]), weights.shape[1]), inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        weights, *inputs = ctx.saved_tensors
        upper, other = grads  # of the output, and of other uses of the first input
        if upper is None:
            return None, other, *[None] * (len(inputs) - 1)
        if torch.is_grad_enabled():  # create_graph=True
            of_weights, of_first, *rest = gradients_by(plain, (weights, *inputs), upper)
            return of_weights, of_first if other is None or of_first is None else of_first + other, *rest
        grad = upper.to(inputs[0].dtype).contiguous()
        grad_inputs: list[Tensor | None] = []
        begin, columns = 0, weights.shape[2]
        for number, x in enumerate(inputs):
            needs_gradient = ctx.needs_input_grad[1 + number]
            added = other.contiguous() if other is not None and number == 0 else None
            arguments = (grad,), weights, begin, (columns, 1), x.shape[2], added
            grad_inputs.append(products(*arguments) if needs_gradient else None)
            begin += x.shape[2]
        return weight_gradient(grad, inputs, len(weights)).to(weights.dtype), *grad_inputs


def weight_gradient(
    grad: Float[Tensor, "nodes components outer"], inputs: Sequence[Float[Tensor, "nodes components _"]], degrees: int
) -> Float[Tensor, "degrees outer inner"]:
    """Returns the gradient of the matrices, summed over nodes and each degree's components in float32."""
    (nodes, components, outer), inner = grad.shape, inputs[0].shape[2]
    inner2 = inputs[1].shape[2] if len(inputs) > 1 else 0
    widths = {"WIDTH_OUT": tile_width(outer), "WIDTH_1": tile_width(inner), "WIDTH_2": tile_width(max(inner2, 1))}
    elements = widths["WIDTH_OUT"] * (widths["WIDTH_1"] + widths["WIDTH_2"])
    partials = grad.new_empty(SPLITS, components, outer, inner + inner2, dtype=torch.float32)
    launch(kernels.linear_backward_weight, (components, SPLITS), 
        grad, inputs[0], inputs[-1], partials, nodes, components, -(-nodes // (NODES * SPLITS)), OUTER=outer,
        INNER_1=inner, INNER_2=inner2, **widths, BN=NODES, PRECISION=precision(grad.dtype),
        num_warps=4 if elements <= MAX_SUMS else 8,
    )  # fmt: skip
    out = partials.new_empty(degrees, outer, inner + inner2)
    launch(kernels.sum_of_degrees, (-(-out[0].numel() // BLOCK), degrees), 
        partials, out, components, SIZE=out[0].numel(), SPLITS=SPLITS, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def plain(
    weights: Float[Tensor, "degrees outer inner"], *inputs: Float[Tensor, "nodes components _"]
) -> Float[Tensor, "nodes components outer"]:
    """Computes the function of `Linear` in plain torch."""
    fiber = Fiber.create(len(weights), weights.shape[1])
    flat = multiply(tuple(x.flatten(1) for x in inputs), weights.to(inputs[0].dtype), fiber)
    return flat.unflatten(1, (len(weights) ** 2, -1))


def linear(
    inputs: tuple[Float[Tensor, "nodes _"], ...], weights: Float[Tensor, "degrees outer inner"]
) -> tuple[Float[Tensor, "nodes features"], Float[Tensor, "nodes _"]]:
    """Computes `multiply` of the plain module for one or two inputs of degrees 0, 1, .., and returns the first input.

    The kernel adds the gradient of the latter's uses.
    """
    components = len(weights) ** 2
    out: Any = Linear.apply(weights, *(x.unflatten(1, (components, -1)).contiguous() for x in inputs))
    return out[0].flatten(1), out[1].flatten(1) if inputs[0].requires_grad else inputs[0]
