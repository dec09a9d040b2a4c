"""Images: what data and models of image classification both know."""

from typing import NamedTuple

from jaxtyping import Int64, UInt8
from torch import Tensor

UNKNOWN = -1  # the label of an image that nobody has labelled


class ImageBatch(NamedTuple):
    """Images as decoders give them: bytes, RGB, rows of pixels. Models normalise them on their device.

    In this order of memory `pixels.permute(0, 3, 1, 2)` is torch's channels_last without a copy.
    """

    pixels: UInt8[Tensor, "batch height width 3"]
    labels: Int64[Tensor, " batch"]  # 0 .. classes - 1, or UNKNOWN
