"""MobileNetV1: a convolution and 13 pairs of a depthwise and a pointwise one, each with BatchNorm and ReLU.

Constants and initialisation are those of gluon-cv's mobilenet1.0 on MXNet: BatchNorm with eps 1e-5 and running averages
with decay 0.9; weights initialised by MSRAPrelu, biases 0.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.config.ranges import Count, Positive
from src.errors import UserError

# Width of the first convolution, then (output channels, stride) of each pair.
STEM = 32
PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *5 * ((512, 1),), (1024, 2), (1024, 1))
PRELU_SLOPE = 0.25  # MSRAPrelu's default, though a ReLU follows


class ConvNormReLU(nn.Module):
    """A convolution without bias, BatchNorm and ReLU."""

    is_depthwise = False

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, eps=1e-5, momentum=0.1)

    def forward(self, x: Float[Tensor, "batch _ height width"]) -> Float[Tensor, "batch channels down across"]:
        return F.relu(self.norm(self.conv(x)))


class Depthwise(ConvNormReLU):
    """A 3 x 3 depthwise convolution with BatchNorm and ReLU."""

    is_depthwise = True

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__(channels, channels, 3, stride, channels)


class Pointwise(ConvNormReLU):
    """A 1 x 1 convolution with BatchNorm and ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__(channels_in, channels_out, 1)


class Separable(nn.Module):
    """A depthwise and a pointwise convolution; the depthwise one has the stride."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.depthwise = Depthwise(channels_in, stride)
        self.pointwise = Pointwise(channels_in, channels_out)

    def forward(self, x: Float[Tensor, "batch _ height width"]) -> Float[Tensor, "batch channels down across"]:
        return self.pointwise(self.depthwise(x))


class MobileNetV1(nn.Module):
    """An image classifier for images of any size; 4,231,976 parameters with the defaults.

    Args:
        num_classes: number of logits.
        width_multiplier: alpha of the paper; scales the channels of every layer (rounded down, as gluon-cv does).
        strides: of the first convolution and of each of the 13 pairs; as published if not given.
    """

    def __init__(
        self, num_classes: Count = 1000, width_multiplier: Positive = 1.0, strides: Sequence[Count] | None = None
    ) -> None:
        """Raises UserError for a width without channels or another number of strides."""
        super().__init__()
        strides = [2, *(stride for _, stride in PAIRS)] if strides is None else list(strides)
        if len(strides) != len(PAIRS) + 1:
            raise UserError(f"model.task.network.strides has {len(strides)} entries; give {len(PAIRS) + 1}")
        if STEM * width_multiplier < 1:
            raise UserError(
                f"model.task.network.width_multiplier={width_multiplier} leaves no channel; give 0.04 or more"
            )
        widths = [int(width * width_multiplier) for width in (STEM, *(width for width, _ in PAIRS))]
        self.stride = math.prod(strides)
        self.stem = ConvNormReLU(3, widths[0], 3, strides[0])
        pairs = zip(widths[:-1], widths[1:], strides[1:], strict=True)
        self.blocks = nn.Sequential(*(Separable(*sizes) for sizes in pairs))
        self.classifier = nn.Linear(widths[-1], num_classes)
        self.apply(initialize)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    @property
    def num_classes(self) -> int:
        return self.classifier.out_features

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Returns the logits of normalised images, fastest in channels_last order."""
        return self.classifier(self.features(images))

    def features(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels"]:
        """Returns the last pair's output averaged over the image. Raises UserError as `check_variance`."""
        self.check_variance(images)
        return self.blocks(self.stem(images)).mean((2, 3))

    def check_variance(self, images: Tensor) -> None:
        """Raises UserError in training where BatchNorm has a single value of a channel, which has no variance."""
        batch, _, *sides = images.shape
        if self.training and batch == 1 and max(sides) <= self.stride:
            size = "x".join(map(str, sides))
            raise UserError(
                f"hp.batch_size=1 with images of {size} leaves BatchNorm one value of a channel; "
                f"give hp.batch_size=2 or more, or images of more than {self.stride}x{self.stride}"
            )

    def layers(self) -> list[ConvNormReLU]:
        """Returns all convolution layers, in order."""
        return [module for module in self.modules() if isinstance(module, ConvNormReLU)]


def initialize(module: nn.Module) -> None:
    """Initialises like MXNet's MSRAPrelu: normal, variance 2 / (1 + slope^2) over the mean of fan-in and fan-out.

    A depthwise convolution's fan-out counts all channels. BatchNorm keeps torch's weight 1 and bias 0.
    """
    if isinstance(module, nn.Conv2d | nn.Linear):
        outputs, inputs, *kernel = module.weight.shape
        fan = math.prod(kernel) * (inputs + outputs) / 2
        nn.init.normal_(module.weight, std=math.sqrt(2 / (1 + PRELU_SLOPE**2) / fan))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
