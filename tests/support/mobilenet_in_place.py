"""Every kernel of a MobileNetV1 that trains, with the inputs it has there, against the same in float64.

A whole network multiplies what is rounded in its first layers, and single layers are not launched as they are in a
network: here each kernel answers for itself.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pairs = Iterator[tuple[str, Tensor, Tensor, Tensor]]  # what it is, as found, as wanted, what an error stands beside


@contextmanager
def judged(fused: Any) -> Iterator[dict[str, float]]:
    """Meanwhile each kernel is judged after its launch; the largest error of each of its results by name."""
    worst: dict[str, float] = defaultdict(float)
    before: list[tuple[Any, str, Any]] = []

    def judging(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            found = kernel(*arguments)
            with torch.enable_grad():
                for what, mine, theirs, beside in JUDGES[name](found, *arguments):
                    error = float(
                        ((mine.double() - theirs).detach().norm() / beside.detach().norm()).nan_to_num(torch.inf)
                    )
                    worst[f"{name} {what}"] = max(worst[f"{name} {what}"], error)
            return found

        return call

    for name in JUDGES:
        module, function = getattr(fused, name.split(".")[0]), name.split(".")[1]
        before.append((module, function, getattr(module, function)))
        setattr(module, function, judging(name, before[-1][2]))
    try:
        yield worst
    finally:
        for module, function, kernel in before:
            setattr(module, function, kernel)


def first(x: Tensor) -> Tensor:
    """Channels before rows and columns, in float64."""
    return x.double().permute(0, 3, 1, 2).contiguous()


def last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def normalised(z: Tensor, norm: Tensor) -> Tensor:
    """What comes before the ReLU."""
    return z.double() * norm[2].double() + norm[3].double()


def slopes_of(g: Tensor, out: Tensor, slopes: Tensor) -> Tensor:
    p, q, r = slopes.double()
    return p * g.double() + q * out.double() + r


def taps(weight: Tensor) -> Tensor:
    """[outputs, 9 * inputs], taps before inputs, as the weight of a convolution."""
    return weight.double().view(len(weight), 3, 3, -1).permute(0, 3, 1, 2).contiguous()


def statistics(out: Tensor, values: Tensor) -> Pairs:
    """Of an output, of what the programs have noted: mean, squared distances from it and how many rows."""
    means, squares, counts = values.double().unbind(1)
    rows = out.double().flatten(0, -2)
    mean = (means * counts).sum(0) / len(rows)
    spread = (rows - rows.mean(0)).square().sum(0)
    yield "mean", mean, rows.mean(0), (spread / len(rows)).sqrt()
    yield "squares", (squares + counts * (means - mean).square()).sum(0), spread, spread


def sums(g: Tensor, z: Tensor, norm: Tensor, values: Tensor) -> Pairs:
    """Of a gradient and of it times (z - mean), which nearly cancel."""
    gradients = g.double().flatten(0, -2)
    products = gradients * (z.double().flatten(0, -2) - norm[0].double())
    yield "sum", values[:, 0].double().sum(0), gradients.sum(0), gradients.abs().sum(0)
    yield "product", values[:, 1].double().sum(0), products.sum(0), products.abs().sum(0)


def stem_forward(found: Any, images: Tensor, weight: Tensor, stride: int) -> Pairs:
    wanted = last(F.conv2d(first(images.to(weight.dtype)), taps(weight), stride=stride, padding=1))
    yield "output", found[0], wanted, wanted
    yield from statistics(found[0], found[1].values)


def stem_backward_weight(
    found: Any, g: Tensor, out: Tensor, slopes: Tensor, images: Tensor, weight: Tensor, stride: int
) -> Pairs:
    own = taps(weight).requires_grad_()
    given = first(slopes_of(g, out, slopes))
    (wanted,) = torch.autograd.grad(F.conv2d(first(images), own, stride=stride, padding=1), own, given)
    yield "weight", taps(found), wanted, wanted


def depthwise_forward(found: Any, z: Tensor, norm: Tensor, weight: Tensor, stride: int) -> Pairs:
    a = first(normalised(z, norm).relu())
    wanted = last(F.conv2d(a, taps(weight), stride=stride, padding=1, groups=len(weight)))
    yield "output", found[0], wanted, wanted
    yield from statistics(found[0], found[1].values)


def depthwise_backward(
    found: Any, g: Tensor, out: Tensor, slopes: Tensor, weight: Tensor, z: Tensor, norm: Tensor, stride: int
) -> Pairs:
    before, own = first(normalised(z, norm)).requires_grad_(), taps(weight).requires_grad_()
    made = F.conv2d(before.relu(), own, stride=stride, padding=1, groups=len(weight))
    of_input, of_weight = torch.autograd.grad(made, (before, own), first(slopes_of(g, out, slopes)))
    yield "gradient", found[0], last(of_input), of_input
    yield from sums(found[0], z, norm, found[1].values)
    yield "weight", taps(found[2]), of_weight, of_weight


def pointwise_forward(found: Any, z: Tensor, norm: Tensor, weight: Tensor) -> Pairs:
    wanted = normalised(z, norm).relu() @ weight.double().T
    yield "output", found[0], wanted, wanted
    yield from statistics(found[0], found[1].values)


def pointwise_backward(
    found: Any, g: Tensor, out: Tensor, slopes: Tensor, weight: Tensor, z: Tensor, norm: Tensor
) -> Pairs:
    wanted = (slopes_of(g, out, slopes) @ weight.double()) * (normalised(z, norm) > 0)
    yield "gradient", found[0], wanted, wanted
    yield from sums(found[0], z, norm, found[1].values)


def pointwise_backward_weight(found: Any, g: Tensor, out: Tensor, slopes: Tensor, z: Tensor, norm: Tensor) -> Pairs:
    wanted = slopes_of(g, out, slopes).flatten(0, 2).T @ normalised(z, norm).relu().flatten(0, 2)
    yield "weight", found, wanted, wanted


JUDGES: dict[str, Callable[..., Pairs]] = {
    "stem.forward": stem_forward,
    "stem.backward_weight": stem_backward_weight,
    "depthwise.forward": depthwise_forward,
    "depthwise.backward": depthwise_backward,
    "pointwise.forward": pointwise_forward,
    "pointwise.backward": pointwise_backward,
    "pointwise.backward_weight": pointwise_backward_weight,
}
