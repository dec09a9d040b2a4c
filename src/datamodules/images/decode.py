"""From the bytes of an image file to pixels of one size: JPEGs by libjpeg-turbo, whatever else by Pillow.

simplejpeg is libjpeg-turbo without detours: it gives way to other threads, takes the file's bytes, and refuses damaged
ones. Resizing is torch's for bytes, smoothed where an image shrinks. benchmarks/image_decode.py has the figures.
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

ATTEMPTS = 10  # to find a crop of random area and shape that lies within an image
AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width to height
CENTRE = 0.875  # share of the shorter side that an evaluation looks at: 224 of 256
NUM_DRAWS = 2 * ATTEMPTS + 2  # numbers that decide on a crop

Pixels = UInt8[np.ndarray, "height width 3"]


class Box(NamedTuple):
    """A part of an image, in pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


def random_box(width: int, height: int, draws: Float[np.ndarray, " draws"]) -> Box:
    """A part of 8% to 100% of the area with sides of 3:4 to 4:3, and the centre where none is found (gluon-cv's crop).

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
    """The square in the middle: what is left of resizing the shorter side to 256 and cutting out 224 x 224."""
    side = max(1, round(CENTRE * min(width, height)))
    return Box((width - side) // 2, (height - side) // 2, side, side)


def load(path: Path | str, size: int, draws: Float[np.ndarray, " draws"] | None = None) -> Pixels:
    """A part of the image in a file, random by `draws` or the centre, as size x size RGB pixels.

    Raises UserError naming a file that cannot be read or decoded.
    """
    try:
        return decode(Path(path).read_bytes(), size, draws)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(f"{path} is no image that can be decoded ({reason}): mend or remove it") from error


def decode(data: bytes, size: int, draws: Float[np.ndarray, " draws"] | None = None) -> Pixels:
    """As `load`, of the bytes of a file. Raises OSError, ValueError, SyntaxError or Pillow's own for bad ones."""

    def box_in(width: int, height: int) -> Box:
        return centre_box(width, height) if draws is None else random_box(width, height, draws)

    if (sides := fast_sides(data)) is not None:
        return resized(*reduced(data, sides, box_in(*sides), size), size)
    pixels = by_pillow(data)
    return resized(pixels, box_in(pixels.shape[1], pixels.shape[0]), size)


def decode_whole(data: bytes) -> Pixels:
    """All pixels of an image. Raises as `decode`."""
    return by_pillow(data) if fast_sides(data) is None else simplejpeg.decode_jpeg(data, "RGB")


def fast_sides(data: bytes) -> tuple[int, int] | None:
    """Width and height of a JPEG that libjpeg-turbo turns into RGB; None for other images, JPEGs in CMYK too."""
    if not simplejpeg.is_jpeg(data):
        return None
    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    return None if colours in ("CMYK", "YCCK") else (int(width), int(height))


def reduced(data: bytes, sides: tuple[int, int], box: Box, size: int) -> tuple[Pixels, Box]:
    """A JPEG's pixels, and where in them `box` is.

    Halved, quartered or eighthed, which libjpeg does with less work, where `box` is 2 x `size` wide even then: rounding
    it moves the image by a quarter of a pixel at most.
    """
    spare = min(box.width, box.height) / (2 * size)
    if spare < 2:
        return simplejpeg.decode_jpeg(data, "RGB"), box
    width, height = sides
    pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=width / spare, min_height=height / spare, min_factor=2)
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    return pixels, Box(*(round(part * by) for part, by in zip(box, (across, down, across, down), strict=True)))


def by_pillow(data: bytes) -> Pixels:
    """Any other kind of image, converted to RGB: grey, CMYK, with a palette or transparent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of strange tags; damage is an error
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image.convert("RGB"))


def resized(pixels: Pixels, box: Box, size: int) -> UInt8[np.ndarray, "{size} {size} 3"]:
    """That part of an image as size x size pixels, bilinear, smoothed where it shrinks."""
    part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    if part.shape[:2] == (size, size):
        return part
    # A copy by numpy: torch's would start threads of its own in each of ours. The batch's dimension comes first of all,
    # or torch would not see that the bytes are in channels_last order, and would put them into another one and back.
    image = torch.from_numpy(np.ascontiguousarray(part))[None].permute(0, 3, 1, 2)
    smaller = F.interpolate(image, (size, size), mode="bilinear", antialias=True)
    return smaller[0].permute(1, 2, 0).numpy()
