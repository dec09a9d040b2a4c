"""MobileNetV1's fused kernels against plain torch in float64: on a CPU (interpreted) and on a GPU."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.network import ConvNormReLU, Depthwise, Pointwise
from tests.support.kernel_differences import error, random

Shape = tuple[int, int, int, int]  # images, channels of the first layer, height, width


class Errors(NamedTuple):
    """The kernels' errors compared with float64, each relative to the largest expected value.

    Errors of gradients that BatchNorm cancels are relative to a tenth of the largest parameter gradient.
    """

    output: float
    gradients: dict[str, float]
    buffers: dict[str, float]

    @property
    def of_gradients(self) -> float:
        return max(self.gradients.values())

    @property
    def of_buffers(self) -> float:
        return max(self.buffers.values())

    @property
    def largest(self) -> float:
        return max(self.output, self.of_gradients, self.of_buffers)

    def above(self, most: float) -> str:
        """Returns the errors above `most`, by name."""
        errors = {"output": self.output, **self.gradients, **self.buffers}
        return ", ".join(f"{name} {error:.1e}" for name, error in errors.items() if not error < most)


def stack(layers: list[ConvNormReLU], seed: int, device: str, decided: bool, offset: float) -> list[ConvNormReLU]:
    """Sets random parameters and statistics that are representable in float16 and bfloat16.

    decided: BatchNorm's outputs are far from 0, so that rounding does not change what a ReLU passes.
    offset: is added to all weights of a filter, so that means are large compared with deviations.
    """
    for number, layer in enumerate(layers):
        norm, fan = layer.norm, layer.conv.weight[0].numel()
        side = 1 - 2 * (torch.arange(norm.num_features) % 3 == 0).double()
        values: dict[Tensor, Tensor] = {
            layer.conv.weight: (random(*layer.conv.weight.shape, seed=seed + 10 * number) + offset) / fan**0.5,
            norm.weight: 1 + 0.25 * random(norm.num_features, seed=seed + 10 * number + 1),
            norm.bias: (7 * side if decided else 0.5 * random(norm.num_features, seed=seed + 10 * number + 2)),
            norm.running_mean: random(norm.num_features, seed=seed + 10 * number + 3),  # type: ignore[dict-item]
            norm.running_var: 1 + random(norm.num_features, seed=seed + 10 * number + 4).abs(),  # type: ignore[dict-item]
        }
        with torch.no_grad():
            for tensor, value in values.items():
                tensor.copy_(value.bfloat16())
    return [layer.to(device) for layer in layers]


def layers(
    fused: Any,
    shape: Shape,
    kinds: str,
    width: int,
    dtype: torch.dtype,
    device: str = "cpu",
    decided: bool = False,
    offset: float = 0.0,
    cap: float = 0.0,
) -> Errors:
    """Compares the layers of `build_layers`; their ReLUs end at `cap` if that is positive."""
    modules = stack(build_layers(shape[1], kinds, width), 1, device, decided, offset)
    plain = nn.Sequential(*deepcopy(modules)).double()
    images = pixels(shape, dtype, device)
    with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        output = fused.body.features(images, modules, cap)
    return compared(output, plain_features(images.double(), plain, cap), nn.Sequential(*modules), plain)


def build_layers(channels: int, kinds: str, width: int) -> list[ConvNormReLU]:
    """Returns a first layer to `channels`, then one for each of `kinds`.

    1 or 2 is a depthwise layer with that stride, p a pointwise one to `width` channels.
    """
    first, rest = ConvNormReLU(3, channels, 3), list[ConvNormReLU]()
    for kind in kinds:
        rest.append(Pointwise(channels, width) if kind == "p" else Depthwise(channels, int(kind)))
        channels = width if kind == "p" else channels
    return [first, *rest]


def pixels(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    """Returns float32 images that are representable in `dtype`, in channels_last order."""
    images = random(shape[0], 3, *shape[2:], seed=0, device=device).to(dtype).float()
    return images.contiguous(memory_format=torch.channels_last)


def network(
    features: Callable[[Tensor, Sequence[ConvNormReLU]], Tensor],
    images: Shape,
    dtype: torch.dtype,
    device: str = "cpu",
    depth: int | None = None,
    **options: Any,
) -> Errors:
    """Compares the features of a whole network or its first `depth` layers, with random parameters."""
    model = MobileNetV1(num_classes=3, **options)
    stack(model.layers(), 1, device, True, 0.0)
    model.classifier.to(device)
    plain = deepcopy(model).double()
    colours = pixels(images, dtype, device)
    with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
        output = features(colours, model.layers()[:depth])
    return compared(output, plain_features(colours.double(), plain.layers()[:depth]), model, plain)


def plain_features(images: Tensor, layers: Iterable[nn.Module], cap: float = 0.0) -> Tensor:
    """Computes the features with plain torch."""
    for layer in layers:
        images = layer(images).clamp(max=cap or None, min=0)
    return images.mean((2, 3))


def compared(output: Tensor, expected: Tensor, model: nn.Module, plain: nn.Module) -> Errors:
    """Runs the backward pass of a random linear function of both outputs; returns all errors."""
    factors = random(*output.shape, seed=99, device=str(output.device)).mul(16).round().div(16)
    output.backward(factors.to(output.dtype))
    expected.backward(factors)
    pairs = {
        name: (parameter.grad, exact.grad)
        for (name, parameter), exact in zip(model.named_parameters(), plain.parameters(), strict=True)
        if exact.grad is not None
    }
    least = 0.1 * max(float(exact.abs().max()) for _, exact in pairs.values())  # type: ignore[union-attr]
    gradients = {name: relative_error(grad, exact, least) for name, (grad, exact) in pairs.items()}
    buffers = {
        name: error(buffer.double(), exact.double())
        for (name, buffer), exact in zip(model.named_buffers(), plain.buffers(), strict=True)
    }
    return Errors(error(output.detach(), expected.detach()), gradients, buffers)


def relative_error(actual: Tensor | None, exact: Tensor | None, least: float) -> float:
    """Returns the largest difference relative to the largest expected value, or to `least` if that is larger."""
    assert actual is not None and exact is not None and actual.shape == exact.shape
    return error(actual, exact) * float(exact.abs().max()) / max(float(exact.abs().max()), least)
