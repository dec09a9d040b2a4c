"""Checks every kernel launch of a MobileNetV1 training step against float64 on the launch's own inputs.

A whole network amplifies the rounding of its first layers, and single layers are launched differently than in a
network. So each kernel is checked by itself, in place.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pairs = Iterator[tuple[str, Tensor, Tensor, Tensor]]  # name, result, expected, reference for the relative error


@contextmanager
def checked_kernels(fused: Any) -> Iterator[dict[str, float]]:
    """Checks each kernel after its launch; yields the largest relative error of each result by name."""
    worst: dict[str, float] = defaultdict(float)
    before: list[tuple[Any, str, Any]] = []

    def checking(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            outputs = kernel(*arguments)
            with torch.enable_grad():
                for result, mine, expected, reference in CHECKS[name](outputs, *arguments):
                    error = float(
                        ((mine.double() - expected).detach().norm() / reference.detach().norm()).nan_to_num(torch.inf)
                    )
                    worst[f"{name} {result}"] = max(worst[f"{name} {result}"], error)
            return outputs

        return call

    for name in CHECKS:
        module, function = getattr(fused, name.split(".")[0]), name.split(".")[1]
        before.append((module, function, getattr(module, function)))
        setattr(module, function, checking(name, before[-1][2]))
    try:
        yield worst
    finally:
        for module, function, kernel in before:
            setattr(module, function, kernel)


def channels_first(x: Tensor) -> Tensor:
    """Returns x in float64 with channels before rows and columns."""
    return x.double().permute(0, 3, 1, 2).contiguous()


def channels_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def normalised(z: Tensor, norm: Tensor) -> Tensor:
    """Returns BatchNorm(z), the ReLU's input."""
    return z.double() * norm[2].double() + norm[3].double()


def relu(x: Tensor, cap: float) -> Tensor:
    return x.clamp(0, cap) if cap else x.relu()


def slopes_of(g: Tensor, out: Tensor, slopes: Tensor) -> Tensor:
    p, q, r = slopes.double()
    return p * g.double() + q * out.double() + r


def taps(weight: Tensor) -> Tensor:
    """Returns [outputs, 9 * inputs], taps before inputs, as a convolution's weight."""
    return weight.double().view(len(weight), 3, 3, -1).permute(0, 3, 1, 2).contiguous()


def statistics(out: Tensor, values: Tensor) -> Pairs:
    """Checks the programs' partial statistics of an output: mean, squared deviations, count."""
    means, squares, counts = values.double().unbind(1)
    rows = out.double().flatten(0, -2)
    mean = (means * counts).sum(0) / len(rows)
    spread = (rows - rows.mean(0)).square().sum(0)
    yield "mean", mean, rows.mean(0), (spread / len(rows)).sqrt()
    yield "squares", (squares + counts * (means - mean).square()).sum(0), spread, spread


def sums(g: Tensor, z: Tensor, norm: Tensor, values: Tensor) -> Pairs:
    """Checks the sums of a gradient and of it times (z - mean), which nearly cancel."""
    gradients = g.double().flatten(0, -2)
    products = gradients * (z.double().flatten(0, -2) - norm[0].double())
    yield "sum", values[:, 0].double().sum(0), gradients.sum(0), gradients.abs().sum(0)
    yield "product", values[:, 1].double().sum(0), products.sum(0), products.abs().sum(0)


def stem_forward(outputs: Any, images: Tensor, weight: Tensor, stride: int) -> Pairs:
    expected = channels_last(F.conv2d(channels_first(images.to(weight.dtype)), taps(weight), stride=stride, padding=1))
    yield "output", outputs[0], expected, expected
    yield from statistics(outputs[0], outputs[1].values)


def stem_backward_weight(
    gradient: Any, g: Tensor, out: Tensor, slopes: Tensor, images: Tensor, weight: Tensor, stride: int
) -> Pairs:
    filters = taps(weight).requires_grad_()
    of_output = channels_first(slopes_of(g, out, slopes))
    (expected,) = torch.autograd.grad(
        F.conv2d(channels_first(images), filters, stride=stride, padding=1), filters, of_output
    )
    yield "weight", taps(gradient), expected, expected


def depthwise_forward(outputs: Any, z: Tensor, norm: Tensor, weight: Tensor, stride: int, cap: float) -> Pairs:
    a = channels_first(relu(normalised(z, norm), cap))
    expected = channels_last(F.conv2d(a, taps(weight), stride=stride, padding=1, groups=len(weight)))
    yield "output", outputs[0], expected, expected
    yield from statistics(outputs[0], outputs[1].values)


def depthwise_backward(
    outputs: Any,
    g: Tensor,
    out: Tensor,
    slopes: Tensor,
    weight: Tensor,
    z: Tensor,
    norm: Tensor,
    stride: int,
    cap: float,
) -> Pairs:
    before, filters = channels_first(normalised(z, norm)).requires_grad_(), taps(weight).requires_grad_()
    made = F.conv2d(relu(before, cap), filters, stride=stride, padding=1, groups=len(weight))
    of_input, of_weight = torch.autograd.grad(made, (before, filters), channels_first(slopes_of(g, out, slopes)))
    yield "gradient", outputs[0], channels_last(of_input), of_input
    yield from sums(outputs[0], z, norm, outputs[1].values)
    yield "weight", taps(outputs[1].values[:, 2:].sum(0).T), of_weight, of_weight


def pointwise_forward(outputs: Any, z: Tensor, norm: Tensor, weight: Tensor, cap: float) -> Pairs:
    expected = relu(normalised(z, norm), cap) @ weight.double().T
    yield "output", outputs[0], expected, expected
    yield from statistics(outputs[0], outputs[1].values)


def pointwise_backward(
    outputs: Any, g: Tensor, out: Tensor, slopes: Tensor, weight: Tensor, z: Tensor, norm: Tensor, cap: float
) -> Pairs:
    before = normalised(z, norm)
    expected = (slopes_of(g, out, slopes) @ weight.double()) * ((before > 0) & (before < (cap or torch.inf)))
    yield "gradient", outputs[0], expected, expected
    yield from sums(outputs[0], z, norm, outputs[1].values)


def pointwise_backward_weight(
    gradient: Any, g: Tensor, out: Tensor, slopes: Tensor, z: Tensor, norm: Tensor, cap: float
) -> Pairs:
    expected = slopes_of(g, out, slopes).flatten(0, 2).T @ relu(normalised(z, norm), cap).flatten(0, 2)
    yield "weight", gradient, expected, expected


def pointwise_backward_both(
    outputs: Any, g: Tensor, out: Tensor, slopes: Tensor, weight: Tensor, z: Tensor, norm: Tensor, cap: float, _: object
) -> Pairs:
    yield from pointwise_backward(outputs[:2], g, out, slopes, weight, z, norm, cap)
    yield from pointwise_backward_weight(outputs[2], g, out, slopes, z, norm, cap)


CHECKS: dict[str, Callable[..., Pairs]] = {
    "stem.forward": stem_forward,
    "stem.backward_weight": stem_backward_weight,
    "depthwise.forward": depthwise_forward,
    "depthwise.backward": depthwise_backward,
    "pointwise.forward": pointwise_forward,
    "pointwise.backward": pointwise_backward,
    "pointwise.backward_weight": pointwise_backward_weight,
    "pointwise.backward_both": pointwise_backward_both,
}
