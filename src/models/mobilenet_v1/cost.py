"""What one image costs MobileNetV1: floating point operations (two per multiply-add) and bytes, counted by formula.

Counted are convolutions and the last layer. At 224 x 224 the published network takes 568.7 million multiply-adds
forward and 3.4 GFLOP a trained image: gradients of inputs and of weights take as much again, but the images need none.
"""

from math import prod
from typing import NamedTuple

from src.measure.roofline import Cost
from src.models.mobilenet_v1.network import ConvNormReLU, MobileNetV1

SGD_BYTES = 20  # a parameter: it, its gradient and its momentum are read, it and the momentum written, 4 bytes each


class Layer(NamedTuple):
    """A convolution at one size of image: multiply-adds, and the numbers that come in and out."""

    macs: int
    inputs: int
    outputs: int


def layers(network: MobileNetV1, size: int) -> list[Layer]:
    """Of one image of size x size, in order."""
    found = []
    for module in network.modules():
        if isinstance(module, ConvNormReLU):
            conv = module.conv
            before, size = size, -(-size // conv.stride[0])
            outputs = conv.out_channels * size**2
            found.append(Layer(prod(conv.weight.shape[1:]) * outputs, conv.in_channels * before**2, outputs))
    return found


def bytes_per_image(network: MobileNetV1, size: int, batch_size: int, activation_bytes: int) -> tuple[float, float]:
    """Least bytes through device memory of one image in a batch: (forward, training).

    Forward: the image is read (a byte a colour); what a convolution hands on is written and read once, with BatchNorm
    and ReLU on the way; parameters are read once a batch. BatchNorm in training needs the mean of what it changes, so
    its input is written before and read once more; the backward pass reads that input, and the gradient twice, once for
    its sums and once to pass it on; the gradient of each convolution's input is written. A parameter is read twice, its
    gradient written, and the optimiser's SGD_BYTES pass.
    """
    numbers = sum(layer.outputs for layer in layers(network, size))
    parameters = sum(parameter.numel() for parameter in network.parameters()) / batch_size
    image = 3 * size**2
    forward = image + 2 * activation_bytes * numbers + 4 * parameters
    training = 2 * image + 7 * activation_bytes * numbers + (8 + 4 + SGD_BYTES) * parameters
    return forward, training


def cost(network: MobileNetV1, size: int, batch_size: int, activation_bytes: int) -> Cost:
    """Useful FLOPs and least bytes per image, for the distance to the hardware's limits."""
    convolutions = layers(network, size)
    macs = sum(layer.macs for layer in convolutions) + prod(network.classifier.weight.shape)
    of_images = convolutions[0].macs  # nobody wants their gradient
    return Cost(2 * macs, 2 * (3 * macs - of_images), *bytes_per_image(network, size, batch_size, activation_bytes))
