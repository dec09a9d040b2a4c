"""Batches of images for classification."""

from typing import NamedTuple

from jaxtyping import Int64, UInt8
from torch import Tensor

UNKNOWN = -1  # label of an unlabelled image


class ImageBatch(NamedTuple):
    """Decoded RGB images as bytes, which models normalise on their device.

    `pixels.permute(0, 3, 1, 2)` is in torch's channels_last format without a copy.
    """

    pixels: UInt8[Tensor, "batch height width 3"]
    labels: Int64[Tensor, " batch"]  # 0 .. classes - 1, or UNKNOWN
