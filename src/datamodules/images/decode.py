"""Decodes, crops and resizes image files: JPEGs with libjpeg-turbo, other formats with Pillow.

simplejpeg calls libjpeg-turbo directly: it releases the GIL, takes the file's bytes, and refuses damaged ones. Torch
resizes the bytes, with antialiasing. benchmarks/image_decode.py measures the speed.
"""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from jaxtyping import Float, UInt8
from PIL import Image, UnidentifiedImageError
from torch.nn import functional as F

from src.datamodules.images.rendering import AS_STORED, DEFAULT, Pixels, Rendering, jpeg_orientation, rgb_of, upright
from src.errors import UserError
from src.system.reading import read_bytes

ATTEMPTS = 10  # to find a crop of random area and aspect ratio that lies within an image
AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width to height
CENTRE = 0.875  # share of the shorter side that an evaluation crops: 224 of 256
MOST_PIXELS = 178_956_970  # of a JPEG: Pillow's own limit for every other format, where memory for half a GiB is taken
NUM_DRAWS = 2 * ATTEMPTS + 2  # random numbers of one crop
# What libjpeg says of data that are lost; Pillow takes such a file, with wrong pixels.
LOST = "bad Huffman code", "bad arithmetic code", "premature end of data segment", "instead of RST", "Inconsistent prog"


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


def load(
    path: Path | str, size: int, draws: Float[np.ndarray, " draws"] | None = None, rendering: Rendering = DEFAULT
) -> Pixels:
    """Returns a crop of the image in a file as size x size RGB pixels: random by `draws`, or the centre without.

    Raises UserError that names a file that cannot be read or decoded.
    """
    data = read_bytes(Path(path), "replace or remove it")
    return decoded(path, lambda: decode(data, size, draws, rendering))


def decoded(name: Path | str, decoder: Callable[[], Pixels]) -> Pixels:
    """Returns what `decoder` makes of a file. Raises UserError that names it where it cannot be decoded."""
    try:
        return decoder()
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything for damaged bytes
        raise UserError(f"{name} cannot be decoded as an image ({reason_of(error)}): replace or remove it") from error


def reason_of(error: BaseException) -> str:
    """Returns why a file cannot be read or decoded, in one line, without names of Python objects."""
    if isinstance(error, UnidentifiedImageError):
        return "no image of a format that is read"
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__


def decode(
    data: bytes, size: int, draws: Float[np.ndarray, " draws"] | None = None, rendering: Rendering = DEFAULT
) -> Pixels:
    """Does what `load` does for a file's bytes. Raises nearly anything for damaged ones."""

    def box_in(width: int, height: int) -> Box:
        return centre_box(width, height) if draws is None else random_box(width, height, draws)

    if (sides := fast_sides(data)) is not None:
        orientation = 1 if rendering.as_stored else jpeg_orientation(data)
        box = box_in(*(sides[::-1] if orientation >= 5 else sides))
        try:
            return resized(*reduced(data, sides, box, size, orientation), size)
        except ValueError as error:
            _raise_if_lost(error)  # else such as stray bytes, which Pillow skips
    pixels = by_pillow(data, rendering)
    return resized(pixels, box_in(pixels.shape[1], pixels.shape[0]), size)


def decode_whole(data: bytes, rendering: Rendering = AS_STORED) -> Pixels:
    """Returns all pixels of an image. Raises the same as `decode`."""
    if fast_sides(data) is not None:
        try:
            pixels = simplejpeg.decode_jpeg(data, "RGB")
            return pixels if rendering.as_stored else upright(pixels, jpeg_orientation(data))
        except ValueError as error:
            _raise_if_lost(error)
    return by_pillow(data, rendering)


def _raise_if_lost(error: ValueError) -> None:
    """Raises the error of libjpeg-turbo if it says that pixels are lost."""
    if any(words in str(error) for words in LOST):
        raise error


def fast_sides(data: bytes) -> tuple[int, int] | None:
    """Returns the stored size of a JPEG that libjpeg-turbo converts to RGB; None for other images and CMYK JPEGs."""
    if not simplejpeg.is_jpeg(data):
        return None
    try:
        *sides, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:  # Pillow reads some of these, such as with stray bytes between segments
        return None
    height, width = map(int, sides)
    if height * width > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels, more than {MOST_PIXELS:,}")
    return None if colours in ("CMYK", "YCCK") else (width, height)


def reduced(data: bytes, sides: tuple[int, int], box: Box, size: int, orientation: int = 1) -> tuple[Pixels, Box]:
    """Returns a JPEG's upright pixels, possibly reduced, and `box` in their coordinates.

    libjpeg decodes to 1/2, 1/4 or 1/8 of the size with less work. That is used while `box` keeps 2 x `size` pixels a
    side: rounding `box` then moves the image by a quarter of a pixel at most.

    Args:
        sides: width and height as they are stored.
        box: in the upright image.
    """
    spare = min(box.width, box.height) / (2 * size)
    if spare < 2:
        return upright(simplejpeg.decode_jpeg(data, "RGB"), orientation), box
    width, height = sides
    pixels = simplejpeg.decode_jpeg(data, "RGB", min_width=width / spare, min_height=height / spare, min_factor=2)
    across, down = pixels.shape[1] / width, pixels.shape[0] / height
    if orientation >= 5:
        across, down = down, across
    scaled = Box(*(round(part * by) for part, by in zip(box, (across, down, across, down), strict=True)))
    return upright(pixels, orientation), scaled


def by_pillow(data: bytes, rendering: Rendering) -> Pixels:
    """Returns the upright RGB pixels of any image that Pillow reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about unusual tags; damage is an error
        with Image.open(io.BytesIO(data)) as image:
            return rgb_of(image, rendering)


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
