"""MobileNetV1's cost per image by formula: floating point operations (two per multiply-add) and bytes.

Only convolutions and the last layer count. At 224 x 224 the published network takes 568.7 million multiply-adds forward
and 3.4 GFLOP for training: gradients of inputs and of weights cost as much as forward each, but images get no gradient.
"""

from math import prod
from typing import NamedTuple

from src.measure.roofline import Cost
from src.models.mobilenet_v1.network import ConvNormReLU, MobileNetV1

SGD_BYTES = 20  # per parameter: read it, its gradient and momentum, write it and the momentum, 4 bytes each


class Layer(NamedTuple):
    """A convolution at one image size: multiply-adds, and elements of its input and output."""

    macs: int
    inputs: int
    outputs: int


def layers(network: MobileNetV1, size: int) -> list[Layer]:
    """Returns all convolutions, in order, for one image of size x size."""
    convolutions = []
    for module in network.modules():
        if isinstance(module, ConvNormReLU):
            conv = module.conv
            before, size = size, -(-size // conv.stride[0])
            outputs = conv.out_channels * size**2
            convolutions.append(Layer(prod(conv.weight.shape[1:]) * outputs, conv.in_channels * before**2, outputs))
    return convolutions


def bytes_per_image(
    network: MobileNetV1, size: int, batch_size: float, activation_bytes: int, updates: float = 1
) -> tuple[float, float]:
    """Returns the least bytes of device memory traffic of one image in a batch: (forward, training).

    Forward: read the image (a byte a colour); write and read each convolution's output once, with BatchNorm and ReLU
    fused; read the parameters once per batch. In training BatchNorm needs its input's mean, so the input is written and
    read once more. The backward pass reads that input once and the gradient twice, for its sums and for the next
    gradient, and writes the gradient of each convolution's input. Read a parameter twice, write its gradient, and move
    the optimiser's SGD_BYTES in each of the `updates` steps a batch.
    """
    activations = sum(layer.outputs for layer in layers(network, size))
    parameters = sum(parameter.numel() for parameter in network.parameters()) / batch_size
    image = 3 * size**2
    forward = image + 2 * activation_bytes * activations + 4 * parameters
    training = 2 * image + 7 * activation_bytes * activations + (8 + 4 + updates * SGD_BYTES) * parameters
    return forward, training


def cost(network: MobileNetV1, size: int, batch_size: float, activation_bytes: int, updates: float = 1) -> Cost:
    """Returns useful FLOPs and least bytes per image, for the distance to the hardware's limits."""
    convolutions = layers(network, size)
    macs = sum(layer.macs for layer in convolutions) + prod(network.classifier.weight.shape)
    of_images = convolutions[0].macs  # images get no gradient
    return Cost(
        2 * macs, 2 * (3 * macs - of_images), *bytes_per_image(network, size, batch_size, activation_bytes, updates)
    )
