"""The network and its cost against the published table, implemented a second time with plain functions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from src.errors import UserError
from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.cost import cost, layers

# Blocks of gluon-cv's mobilenet1.0: channels in and out, stride, and the side of the output for images of 224 x 224.
TABLE = [
    (32, 64, 1, 112), (64, 128, 2, 56), (128, 128, 1, 56), (128, 256, 2, 28), (256, 256, 1, 28), (256, 512, 2, 14),
    (512, 512, 1, 14), (512, 512, 1, 14), (512, 512, 1, 14), (512, 512, 1, 14), (512, 512, 1, 14), (512, 1024, 2, 7),
    (1024, 1024, 1, 7),
]  # fmt: skip


def by_the_table(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """Computes the logits by the table, with batch statistics."""

    def normalised(x: Tensor, name: str) -> Tensor:
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
        scale, shift = (weights[f"{name}.norm.{part}"][:, None, None] for part in ("weight", "bias"))
        return ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp_min(0)

    x = normalised(F.conv2d(images, weights["stem.conv.weight"], stride=2, padding=1), "stem")
    for number, (channels_in, channels_out, stride, _) in enumerate(TABLE):
        depthwise, pointwise = f"blocks.{number}.depthwise", f"blocks.{number}.pointwise"
        # A depthwise convolution by definition: nine shifted images, each times its weight.
        kernel, padded = weights[f"{depthwise}.conv.weight"], F.pad(x, (1, 1, 1, 1))
        assert kernel.shape == (channels_in, 1, 3, 3)
        height, width = x.shape[2:]
        shifted = [
            padded[:, :, row : row + height : stride, column : column + width : stride]
            * kernel[:, 0, row, column][:, None, None]
            for row in range(3)
            for column in range(3)
        ]
        x = torch.stack(shifted).sum(0)
        x = normalised(x, depthwise)
        matrix = weights[f"{pointwise}.conv.weight"]
        assert matrix.shape == (channels_out, channels_in, 1, 1)
        x = normalised(torch.einsum("bihw,oi->bohw", x, matrix[:, :, 0, 0]), pointwise)
    return x.mean((2, 3)) @ weights["classifier.weight"].T + weights["classifier.bias"]


def test_the_network_computes_the_published_table() -> None:
    torch.manual_seed(0)
    network = MobileNetV1().double()
    images = torch.randn(2, 3, 96, 64, dtype=torch.float64)
    with torch.no_grad():
        expected = by_the_table(dict(network.state_dict()), images)
        torch.testing.assert_close(network(images), expected, rtol=1e-9, atol=1e-12)
    assert expected.std() > 0.01


def test_the_number_of_parameters_is_as_published() -> None:
    assert sum(p.numel() for p in MobileNetV1().parameters()) == 4_231_976


def test_the_cost_is_as_published() -> None:
    network = MobileNetV1()
    assert cost(network, 224, 1, 4).flops_forward / 2 == pytest.approx(568.7e6, rel=1e-4)
    sides = [math.isqrt(layer.outputs // row[1]) for layer, row in zip(layers(network, 224)[2::2], TABLE, strict=True)]
    assert sides == [row[3] for row in TABLE]


@pytest.mark.parametrize(
    "size", [65, pytest.param(64, marks=pytest.mark.slow), pytest.param(224, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("options", [{}, {"width_multiplier": 0.5}, {"strides": [1] * 10 + [2] * 4}])
def test_the_cost_equals_torchs_flop_count(size: int, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        network = MobileNetV1(num_classes=7, **options)
        with FlopCounterMode(display=False) as counter:
            network(torch.empty(1, 3, size, size))
    assert cost(network, size, 1, 4).flops_forward == counter.get_total_flops()


def test_traffic_counts_activations_images_and_parameters() -> None:
    """Wider activations cost in proportion; a batch shares the cost of parameters."""
    network = MobileNetV1()
    half, whole = (cost(network, 224, 64, width) for width in (2, 4))
    activations = sum(layer.outputs for layer in layers(network, 224))
    assert activations == pytest.approx(5.04e6, rel=0.01)
    assert whole.bytes_forward - half.bytes_forward == pytest.approx(4 * activations)
    assert cost(network, 224, 1, 2).bytes_forward - half.bytes_forward == pytest.approx(4 * 4_231_976 * 63 / 64)


def test_batch_norms_have_gluons_constants() -> None:
    norms = [module for module in MobileNetV1().modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 27 and {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


def test_weights_are_initialised_like_gluons() -> None:
    """Normal, variance 2 / (1 + 0.25^2) over the mean of fan-in and fan-out; fan-out counts all channels."""
    torch.manual_seed(0)
    network = MobileNetV1()
    block: Any = network.blocks[7]
    fans = {block.depthwise.conv: 9 * (1 + 512) / 2, block.pointwise.conv: 512, network.classifier: (1024 + 1000) / 2}
    for layer, fan in fans.items():
        assert layer.weight.mean().abs() < 3 * layer.weight.std() / layer.weight.numel() ** 0.5
        assert layer.weight.std().item() == pytest.approx((2 / 1.0625 / fan) ** 0.5, rel=0.03)
    assert not network.classifier.bias.any()


def test_the_width_multiplier_scales_every_layer() -> None:
    narrow = MobileNetV1(width_multiplier=0.3)
    widths = [narrow.stem.conv.out_channels, *(b.pointwise.conv.out_channels for b in narrow.blocks)]  # type: ignore[union-attr]
    assert widths == [int(0.3 * width) for width in (32, *(row[1] for row in TABLE))]


def test_small_strides_keep_more_of_an_image() -> None:
    network = MobileNetV1(num_classes=10, strides=[1, 1, 1, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1])
    features = network.blocks(network.stem(torch.randn(1, 3, 32, 32)))
    assert features.shape == (1, 1024, 4, 4)
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(("batch", "height", "width"), [(2, 32, 32), (1, 32, 33), (1, 33, 32)])
def test_a_channel_of_two_values_has_a_variance(batch: int, height: int, width: int) -> None:
    network = MobileNetV1(10, 0.25)
    assert network(torch.zeros(batch, 3, height, width)).shape == (batch, 10)


def test_a_channel_of_one_value_is_an_error() -> None:
    network = MobileNetV1(10, 0.25)
    with pytest.raises(UserError, match=r"hp.batch_size=1 with images of 32x32 .* images of more than 32x32"):
        network(torch.zeros(1, 3, 32, 32))
    assert network.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_memory_is_channels_last() -> None:
    network = MobileNetV1(width_multiplier=0.25)
    images = torch.randn(2, 3, 64, 64).contiguous(memory_format=torch.channels_last)
    features = network.blocks(network.stem(images))
    assert features.is_contiguous(memory_format=torch.channels_last)
    weight = network.state_dict()["blocks.0.pointwise.conv.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"strides": [1, 2]}, "strides has 2 entries; give 14"), ({"width_multiplier": 0.01}, "leaves no channel")],
)
def test_bad_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MobileNetV1(**options)
