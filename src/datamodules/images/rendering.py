"""How an image of any kind becomes RGB bytes: depth, transparency, orientation, and the first of several frames.

8-bit colours stay as they are. Grey of 16 bits is scaled by the range of its type. Float pixels are 0 to 1. Integers of
32 bits and signed ones have no fixed white, so they need `value_range`. Transparent parts show `background`. The image
is turned upright as its EXIF or XMP tag says. Colour profiles are not applied.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageColor

from src.errors import UserError

Pixels = UInt8[np.ndarray, "height width 3"]

ORIENTATION = 0x0112  # the EXIF tag
BITS_PER_SAMPLE = 258  # the TIFF tag
MOST_16 = 2**16 - 1
DEEP_MODES = ("I", "F")  # of Pillow, whose range is not that of their type
EMBEDDED = b"Exif\0\0", b"tiff:Orientation"  # a JPEG without either has no orientation


@dataclass(frozen=True)
class Rendering:
    """What the pixels of an image become.

    Args:
        background: colour behind transparent parts: a name, as white, or #rrggbb.
        value_range: pixel values of 16-bit, 32-bit and float images that become black and white.
        as_stored: Pillow's conversion to RGB and nothing else, for published data: orientation and transparency are
            ignored.
    """

    background: str = "white"
    value_range: tuple[float, ...] | None = None
    as_stored: bool = False

    def __post_init__(self) -> None:
        """Raises UserError for an unknown colour and for an empty range."""
        try:
            ImageColor.getrgb(self.background)
        except ValueError:
            raise UserError(
                f"datamodule.background={self.background} is not a colour: give a name, such as white, or #rrggbb"
            ) from None
        values = self.value_range
        if values is not None and (len(values) != 2 or not values[0] < values[1]):
            shown = ",".join(f"{value:g}" for value in values)
            raise UserError(f"datamodule.value_range=[{shown}] is no range: give the values of black and white")

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        return ImageColor.getrgb(self.background)[:3]


class UnknownRangeError(ValueError):
    """Pixel values whose black and white are not known."""


AS_STORED = Rendering(as_stored=True)
DEFAULT = Rendering()


def rgb_of(image: Image.Image, rendering: Rendering = DEFAULT) -> Pixels:
    """Returns the RGB pixels of the first frame of an open image. Raises UnknownRangeError."""
    if rendering.as_stored:
        return np.array(image.convert("RGB"))
    image.load()
    if image.mode.startswith("I;16") or image.mode in DEEP_MODES:
        pixels = deep_grey(image, rendering)
    elif image.has_transparency_data:
        colour = Image.new("RGBA", image.size, rendering.background_rgb)
        pixels = np.array(Image.alpha_composite(colour, image.convert("RGBA")).convert("RGB"))
    else:
        pixels = np.array(image.convert("RGB"))
    return upright(pixels, orientation_of(image))


def deep_grey(image: Image.Image, rendering: Rendering) -> Pixels:
    """Returns grey of more than 8 bits as three equal colours. Raises UnknownRangeError, ValueError for NaN."""
    values = np.asarray(image)
    low, high = rendering.value_range or type_range(image)
    if image.mode in DEEP_MODES and rendering.value_range is None:
        check_within(values, low, high)
    scaled = (np.clip(values.astype(np.float64), low, high) - low) * (255 / (high - low))
    if not np.isfinite(scaled).all():
        raise ValueError("pixels that are no number")
    grey = np.rint(scaled).astype(np.uint8)
    if isinstance(hidden := image.info.get("transparency"), int):  # a grey level that a PNG calls transparent
        return np.where((values == hidden)[..., None], np.array(rendering.background_rgb, np.uint8), grey[..., None])
    return np.repeat(grey[..., None], 3, 2)


def type_range(image: Image.Image) -> tuple[float, float]:
    """Returns the values of black and white by the type of the pixels. Raises UnknownRangeError."""
    if image.mode == "F":
        return 0.0, 1.0
    if image.mode == "I" and image.format != "PPM":  # Pillow scales PPM's to 16 bits
        low, high = image.getextrema()
        raise UnknownRangeError(
            f"signed or 32-bit integers, from {low:,} to {high:,}, have no fixed white: give datamodule.value_range="
            "[BLACK,WHITE]"
        )
    tags: Any = getattr(image, "tag_v2", {})
    bits = int((tags.get(BITS_PER_SAMPLE) or (16,))[0])
    return 0.0, float(2**bits - 1) if 8 < bits < 16 else float(MOST_16)


def check_within(values: np.ndarray, low: float, high: float) -> None:
    """Raises UnknownRangeError for a value outside of the range; NaN is not its matter."""
    least, most = np.nanmin(values), np.nanmax(values)
    if least < low or most > high:
        raise UnknownRangeError(
            f"pixel values from {least:g} to {most:g}, expected {low:g} to {high:g}: give datamodule.value_range="
            "[BLACK,WHITE]"
        )


def jpeg_orientation(data: bytes) -> int:
    """Returns the EXIF orientation of a JPEG, 1 to 8: 1 where it has none."""
    if not any(mark in data for mark in EMBEDDED):
        return 1
    with Image.open(io.BytesIO(data)) as image:
        return orientation_of(image)


def orientation_of(image: Image.Image) -> int:
    """Returns the EXIF orientation of an open image, 1 to 8: 1 where it has none, or a value of no meaning."""
    orientation = image.getexif().get(ORIENTATION, 1)
    return orientation if orientation in range(2, 9) else 1


def upright(pixels: Pixels, orientation: int) -> UInt8[np.ndarray, "rows columns 3"]:
    """Returns the image turned and mirrored as an EXIF orientation says."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def changes_of(image: Image.Image, rendering: Rendering) -> list[str]:
    """Returns how the image of an open file is changed, by its header alone; nothing for what is kept exactly."""
    changes = []
    if orientation_of(image) > 1:
        changes.append("turned upright by its EXIF orientation")
    if getattr(image, "is_animated", False):
        changes.append("the first of several frames or pages taken")
    if image.mode.startswith("I;16") or image.mode in DEEP_MODES:
        low, high = rendering.value_range or type_range(image)
        changes.append(f"grey values {low:g} to {high:g} scaled to 0 to 255")
    elif ";16" in str(getattr(image, "tile", "")):
        changes.append("16 bits a colour reduced to 8")
    if image.has_transparency_data:
        changes.append(f"transparency shown on {rendering.background} (datamodule.background)")
    if image.mode in ("CMYK", "LAB"):
        changes.append(f"{image.mode} converted to RGB without a colour profile")
    return changes


def lossless_kind(image: Image.Image) -> str | None:
    """Returns what an image is that becomes RGB without a loss: grey, black and white, or with a palette; else None."""
    return {"1": "black and white", "L": "grey", "LA": "grey", "P": "with a palette", "PA": "with a palette"}.get(
        image.mode
    )
