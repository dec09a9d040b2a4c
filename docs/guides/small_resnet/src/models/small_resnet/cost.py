"""What one image costs the small ResNet: FLOPs (two per multiply-add) and least bytes, counted by formula."""

from collections.abc import Iterator
from math import prod

from src.models.small_resnet.network import Block, SmallResNet
from torch import nn

from src.measure.roofline import Cost

SGD_BYTES = 20  # a parameter: it, its gradient and its momentum are read, it and the momentum written, 4 bytes each


def convolutions(network: SmallResNet, size: int) -> Iterator[tuple[nn.Conv2d, int]]:
    """Yields each convolution with the height of its output, for images of size x size."""
    yield network.stem, size
    for block in network.blocks:
        assert isinstance(block, Block)
        size = -(-size // block.stride)
        yield block.conv1, size
        yield block.conv2, size
        if block.shortcut is not None:
            yield block.shortcut, size


def cost(network: SmallResNet, size: int, batch_size: float, activation_bytes: int) -> Cost:
    """Returns useful FLOPs and least bytes of an image of size x size in a batch.

    Training computes two gradients for each product, but none of the image. Bytes: every convolution's output is
    written and read once forward, and twice more backward; parameters are read once forward, and once more and updated
    in training.
    """
    layers = [*convolutions(network, size)]
    macs = [prod(conv.weight.shape) * side**2 for conv, side in layers]
    total = sum(macs) + prod(network.classifier.weight.shape)
    numbers = sum(conv.out_channels * side**2 for conv, side in layers)
    parameters = sum(parameter.numel() for parameter in network.parameters()) / batch_size
    forward = 3 * size**2 + 2 * activation_bytes * numbers + 4 * parameters
    training = 2 * 3 * size**2 + 6 * activation_bytes * numbers + (8 + 4 + SGD_BYTES) * parameters
    return Cost(2 * total, 2 * (3 * total - macs[0]), forward, training)
