"""All layers, from the images to averages over each image, as one differentiable function.

A layer stores z, the convolution's output; the kernel that loads z applies BatchNorm and ReLU. The backward pass stores
g, the gradient of BatchNorm's output; the kernel that loads g computes the gradient of z. Memory passes (a read or a
write of all elements of a layer's output) of plain torch and of these kernels:

- forward, torch 7: the convolution writes z, BatchNorm reads it twice and writes, ReLU reads and writes, and the next
  convolution reads. Here 2: the convolution writes z, the next one reads it.
- backward, torch 12: ReLU reads 2 and writes, BatchNorm reads 2 twice and writes, the kernel of the input's gradient
  reads and writes, that of the weight's reads 2. Here 4: a kernel reads g, z and the input's z, and writes the input's
  g. A depthwise layer's weight gradient is included, and that of narrow pointwise layers in half precision; that of
  other pointwise layers takes 3 more.

The kernels that hold z and g in registers also compute BatchNorm's sums, forward and backward, program by program. A
small kernel per layer adds these partial sums. Without atomics, equal inputs give equal bits.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.gpu import weight_copies
from src.gpu.triton_helpers import can_take, precision, working_dtype
from src.gpu.weight_copies import WeightCopies
from src.models.mobilenet_v1.fast import depthwise, pointwise, precompile, stem
from src.models.mobilenet_v1.fast.norm import conclude, conclude_backward, pool, pool_backward
from src.models.mobilenet_v1.network import ConvNormReLU, MobileNetV1


class ConvNorm(NamedTuple):
    """The layers of other people's networks that compute what a ConvNormReLU does."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    is_depthwise: bool


Layers = Sequence[ConvNormReLU | ConvNorm]
compiled = set[tuple[object, ...]]()  # shapes and dtypes whose kernels this process has compiled


class FastMobileNetV1(MobileNetV1):
    """In training with float32 weights: all layers by the kernels of `body`. Images get no gradient there."""

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels"]:
        weights, needs_gradient = self.classifier.weight.dtype, images.requires_grad
        is_supported = weights == torch.float32 and not needs_gradient
        if not self.training or not can_take(
            "body", images, is_supported, weights=weights, gradient_of_images=needs_gradient
        ):
            return super().features(images)
        self.check_variance(images)
        return features(images, self.layers())


class Body(torch.autograd.Function):
    """All layers; `parameters` are each layer's convolution weight and BatchNorm weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, layers: Layers, dtype: torch.dtype, cap: float, *parameters: Tensor
    ) -> Tensor:
        images = images.permute(0, 2, 3, 1).contiguous()
        weights = weight_matrices(layers, dtype)
        out, partials = stem.forward(images, weights[0], layers[0].conv.stride[0])
        outputs, norms = [out], [conclude(partials, layers[0].norm)]
        for layer, weight in zip(layers[1:], weights[1:], strict=True):
            if layer.is_depthwise:
                out, partials = depthwise.forward(out, norms[-1], weight, layer.conv.stride[0], cap)
            else:
                out, partials = pointwise.forward(out, norms[-1], weight, cap)
            outputs.append(out)
            norms.append(conclude(partials, layer.norm))
        torch._foreach_add_([layer.norm.num_batches_tracked for layer in layers], 1)  # pyright: ignore
        ctx.layers, ctx.cap = layers, cap
        ctx.save_for_backward(images, *outputs, *norms, *weights)
        return pool(out, norms[-1], cap)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        layers: Layers = ctx.layers
        count, cap, images = len(layers), ctx.cap, ctx.saved_tensors[0]
        outputs, norms, weights = (ctx.saved_tensors[1 + k * count : 1 + (k + 1) * count] for k in range(3))
        g, partials = pool_backward(grads[0], outputs[-1], norms[-1], cap)
        gradients: list[Tensor | None] = [None] * (3 * count)  # in the order of `parameters`
        for number in reversed(range(count)):
            layer, out, weight = layers[number], outputs[number], weights[number]
            of_norm = conclude_backward(partials, norms[number])
            gradients[3 * number + 1 : 3 * number + 3] = of_norm.weight, of_norm.bias
            if of_norm.taps is not None:
                gradients[3 * number + 3] = unflattened(of_norm.taps, layers[number + 1])
            of_output, stride, of_weight = (g, out, of_norm.slopes), layer.conv.stride[0], None
            if number == 0:
                of_weight = stem.backward_weight(*of_output, images, weight, stride)
            elif layer.is_depthwise:
                g, partials = depthwise.backward(
                    *of_output, weight, outputs[number - 1], norms[number - 1], stride, cap
                )
            else:
                of_input = outputs[number - 1], norms[number - 1]
                g, partials, of_weight = pointwise.gradients(*of_output, weight, *of_input, cap)
            if of_weight is not None:
                gradients[3 * number] = unflattened(of_weight, layer)
        return None, None, None, None, *gradients


def features(
    images: Float[Tensor, "images colours height width"],
    layers: Layers,
    cap: float = 0.0,
    parameters: Sequence[Tensor] | None = None,
) -> Float[Tensor, "images channels"]:
    """Returns the last layer's output averaged over each image, in training; updates the running statistics.

    The first layer is a full 3 x 3 convolution, others are depthwise or pointwise. Images get no gradient.

    Args:
        cap: where every ReLU ends, 6 for ReLU6; 0 for ReLU.
        parameters: what gets the gradients, as `parameters_of(layers)`; these themselves by default.

    Raises ValueError if BatchNorm gets a single value per channel, as torch's does.
    """
    dtype = working_dtype(images)
    sizes = tuple((layer.conv.weight.shape, layer.conv.stride) for layer in layers)
    key = images.shape, images.dtype, dtype, precision(dtype), sizes, cap
    if images.is_cuda and key not in compiled:
        compiled.add(key)
        precompile.compile_all(launches_of(images, layers, dtype, cap))
    return apply_body(images, layers, dtype, cap, parameters)


def launches_of(images: Tensor, layers: Layers, dtype: torch.dtype, cap: float = 0.0) -> set[precompile.Launch]:
    """Returns all kernel launches of a forward and backward pass, without running them."""
    with precompile.record_launches() as launches, torch.enable_grad(), WeightCopies().active():
        apply_body(images, deepcopy(list(layers)), dtype, cap).sum().backward()
    return launches


def apply_body(
    images: Tensor, layers: Layers, dtype: torch.dtype, cap: float, parameters: Sequence[Tensor] | None = None
) -> Tensor:
    parameters = parameters_of(layers) if parameters is None else parameters
    return Body.apply(images, layers, dtype, cap, *parameters)  # type: ignore[return-value]


def parameters_of(layers: Layers) -> list[Any]:
    """Returns each layer's convolution weight, and its norm's weight and bias."""
    return [p for layer in layers for p in (layer.conv.weight, layer.norm.weight, layer.norm.bias)]


def weight_matrices(layers: Layers, dtype: torch.dtype) -> list[Tensor]:
    """Returns weights as matrices with a row per output: depthwise ones in float32, others in `dtype`."""
    pointwise = [layer.conv.weight for layer in layers if layer.conv.kernel_size == (1, 1)]
    copies = dict(zip(pointwise, weight_copies.cast_each(pointwise, dtype), strict=True))
    matrices = []
    for layer in layers:
        # Taps before inputs: the memory order of channels_last.
        weight = copies.get(layer.conv.weight, layer.conv.weight).detach().permute(0, 2, 3, 1)
        if not layer.is_depthwise and weight.dtype != dtype:
            weight = weight.to(dtype, memory_format=torch.contiguous_format)
        matrices.append(weight.flatten(1).contiguous())
    return matrices


def unflattened(
    gradient: Float[Tensor, "outputs taps"], layer: ConvNormReLU | ConvNorm
) -> Float[Tensor, "outputs inputs height width"]:
    """Returns a gradient in the layout of `weight_matrices` in that of the convolution's weight."""
    outputs, inputs, height, width = layer.conv.weight.shape
    return gradient.reshape(outputs, height, width, inputs).permute(0, 3, 1, 2)
