"""Decodes, crops and resizes image files: JPEGs with libjpeg-turbo, other formats with Pillow.

simplejpeg calls libjpeg-turbo directly: it releases the GIL, takes the file's bytes, and refuses damaged ones. Torch
resizes the bytes, with antialiasing. benchmarks/image_decode.py measures the speed.
"""

import io
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch.nn import functional as F

from src.errors import UserError
from src.system.reading import read_bytes

ATTEMPTS = 10  # to find a crop of random area and aspect ratio that lies within an image
AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width to height
CENTRE = 0.875  # share of the shorter side that an evaluation crops: 224 of 256
MOST_PIXELS = 178_956_970  # of a JPEG: Pillow's own limit for every other format, where memory for half a GiB is taken
NUM_DRAWS = 2 * ATTEMPTS + 2  # random numbers of one crop

Pixels = UInt8[np.ndarray, "height width 3"]


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


def random_box(width: int, height: int, draws: Float[np.ndarray, " draws"]) -> Box:
    """Returns a random crop of 8% to 100% of the area with an aspect ratio of 3:4 to 4:3, as gluon-cv's.

    The centre if no attempt lies within the image.

    Args:
        draws: NUM_DRAWS numbers between 0 and 1.
    """
    x, y = draws[2 * ATTEMPTS :]
    low, high = np.log(RATIO)
    for area, shape in draws[: 2 * ATTEMPTS].reshape(ATTEMPTS, 2):
        pixels = width * height * (AREA[0] + (AREA[1] - AREA[0]) * area)
        ratio = np.exp(low + (high - low) * shape)
        w, h = round(float(np.sqrt(pixels * ratio))), round(float(np.sqrt(pixels / ratio)))
        if 0 < w <= width and 0 < h <= height:
            return Box(int(x * (width - w + 1)), int(y * (height - h + 1)), w, h)
    w, h = min(width, max(1, round(height * RATIO[1]))), min(height, max(1, round(width / RATIO[0])))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def centre_box(width: int, height: int) -> Box:
    """Returns the central square: the region that resizing the shorter side to 256 and cropping 224 x 224 keeps."""
    side = max(1, round(CENTRE * min(width, height)))
    return Box((width - side) // 2, (height - side) // 2, side, side)


def load(path: Path | str, size: int, draws: Float[np.ndarray, " draws"] | None = None) -> Pixels:
    """Returns a crop of the image in a file as size x size RGB pixels: random by `draws`, or the centre without.

    Raises UserError that names a file that cannot be read or decoded.
    """
    try:
        return decode(read_bytes(Path(path), "replace or remove it"), size, draws)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"{path} cannot be decoded as an image ({reason}): replace or remove it") from error


def decode(data: bytes, size: int, draws: Float[np.ndarray, " draws"] | None = None) -> Pixels:
    """Does what `load` does for a file's bytes. Raises OSError, ValueError, SyntaxError or Pillow's own errors."""

    def box_in(width: int, height: int) -> Box:
        return centre_box(width, height) if draws is None else random_box(width, height, draws)

    if (sides := fast_sides(data)) is not None:
        return resized(*reduced(data, sides, box_in(*sides), size), size)
    pixels = by_pillow(data)
    return resized(pixels, box_in(pixels.shape[1], pixels.shape[0]), size)


def decode_whole(data: bytes) -> Pixels:
    """Returns all pixels of an image. Raises the same as `decode`."""
    return by_pillow(data) if fast_sides(data) is None else simplejpeg.decode_jpeg(data, "RGB")


def fast_sides(data: bytes) -> tuple[int, int] | None:
    """Returns the size of a JPEG that libjpeg-turbo converts to RGB; None for other images and CMYK JPEGs."""
    if not simplejpeg.is_jpeg(data):
        return None
    *sides, colours, _ = simplejpeg.decode_jpeg_header(data)
    height, width = map(int, sides)
    if height * width > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than {MOST_PIXELS:,}")
    return None if colours in ("CMYK", "YCCK") else (width, height)


def reduced(data: bytes, sides: tuple[int, int], box: Box, size: int) -> tuple[Pixels, Box]:
    """Returns a JPEG's pixels, possibly reduced, and `box` in their coordinates.

    libjpeg decodes to 1/2, 1/4 or 1/8 of the size with less work. That is used while `box` keeps 2 x `size` pixels a
    side: rounding `box` then moves the image by a quarter of a pixel at most.
    """
    spare = min(box.width, box.height) / (2 * size)
    if spare < 2:
        return simplejpeg.decode_jpeg(data, "RGB"), box
    width, height = sides
    pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=width / spare, min_height=height / spare, min_factor=2)
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    return pixels, Box(*(round(part * by) for part, by in zip(box, (across, down, across, down), strict=True)))


def by_pillow(data: bytes) -> Pixels:
    """Returns the RGB pixels of any image that Pillow reads: grey, CMYK, with a palette or transparent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about unusual tags; damage is an error
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))


def resized(pixels: Pixels, box: Box, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """Returns the region `box` of an image as size x size pixels, bilinear with antialiasing."""
    part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    if part.shape[:2] == (size, size):
        return part
    # numpy copies, because torch would start its own threads in each decoding thread. The batch dimension is added
    # first, so that torch recognises channels_last and does not convert the layout and back.
    image = torch.from_numpy(np.ascontiguousarray(part))[None].permute(0, 3, 1, 2)
    smaller = F.interpolate(image, (size, size), mode="bilinear", antialias=True)
    return smaller[0].permute(1, 2, 0).numpy()
