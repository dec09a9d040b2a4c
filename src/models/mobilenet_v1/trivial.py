"""TrivialAugment (Mueller and Hutter 2021) on whole batches: one random operation of random strength for each image.

Every operation equals Pillow's, as in AutoAugment (Cubuk et al. 2019). All are computed for the whole batch and each
image selects its own, so that shapes do not depend on random numbers and a CUDA graph can hold it.
"""

from enum import IntEnum

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

GREY = (0.299, 0.587, 0.114)  # luma of red, green and blue
# Sizes at strength 1, those of the paper's widest space.
MAX_ROTATION = 135 * torch.pi / 180
MAX_TRANSLATION = 32  # pixels
MAX_SHEAR = 0.99  # pixels a row
MAX_BLEND = 0.99  # of the distance to grey, black, the mean or a smoothed image
MAX_BITS = 6  # bits dropped by posterize


class Change(IntEnum):
    """The operations."""

    IDENTITY = 0
    AUTOCONTRAST = 1
    EQUALIZE = 2
    ROTATE = 3
    SOLARIZE = 4
    COLOR = 5
    POSTERIZE = 6
    CONTRAST = 7
    BRIGHTNESS = 8
    SHARPNESS = 9
    SHEAR_X = 10
    SHEAR_Y = 11
    TRANSLATE_X = 12
    TRANSLATE_Y = 13


def draw_changes(
    batch: int, widest: float, device: torch.device
) -> tuple[Int64[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Returns a random `Change` for each image, all 14 equally likely, and a strength, uniform from -widest to widest.

    The paper draws one of 31 strengths from 0 to 1 and a sign; here strengths are continuous.
    """
    change = torch.randint(len(Change), (batch,), device=device)
    return change, widest * (2 * torch.rand(batch, device=device) - 1)


def apply_changes(
    pixels: UInt8[Tensor, "batch height width 3"], change: Int64[Tensor, " batch"], strength: Float[Tensor, " batch"]
) -> Float[Tensor, "batch height width 3"]:
    """Returns images of 0 to 255 after each one's `Change` with a strength from -1 to 1."""
    change, strength = change[:, None, None, None], strength[:, None, None, None]
    images = _transformed(pixels, change, strength).float()
    images = torch.where(change == Change.SOLARIZE, _solarized(images, strength.abs()), images)
    images = torch.where(change == Change.POSTERIZE, _posterized(images, strength.abs()), images)
    images = torch.where(change == Change.AUTOCONTRAST, _stretched(images), images)
    images = torch.where(change == Change.EQUALIZE, _equalized(images), images)
    return _blended(images, change, strength)


def _transformed(pixels: Tensor, change: Tensor, strength: Tensor) -> Tensor:
    """Rotates about the centre, shears from the upper left corner or translates; nearest pixel, black outside."""
    _, height, width, _ = pixels.shape
    y = torch.arange(height, device=pixels.device)[None, :, None, None] + 0.5
    x = torch.arange(width, device=pixels.device)[None, None, :, None] + 0.5

    def only(kind: Change, size: float) -> Tensor:
        return torch.where(change == kind, size * strength, 0)

    angle = only(Change.ROTATE, MAX_ROTATION)
    cosine, sine = angle.cos(), angle.sin()
    from_x, from_y = x - width / 2, y - height / 2
    source_x = cosine * from_x - sine * from_y + width / 2 + only(Change.SHEAR_X, MAX_SHEAR) * y
    source_y = sine * from_x + cosine * from_y + height / 2 + only(Change.SHEAR_Y, MAX_SHEAR) * x
    column = (source_x + only(Change.TRANSLATE_X, MAX_TRANSLATION).trunc()).floor().long()[..., 0]
    row = (source_y + only(Change.TRANSLATE_Y, MAX_TRANSLATION).trunc()).floor().long()[..., 0]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    image = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    moved = pixels[image, row.clamp(0, height - 1), column.clamp(0, width - 1)]
    return torch.where(inside[..., None], moved, 0)


def _solarized(images: Tensor, strength: Tensor) -> Tensor:
    """Inverts values from 256 (1 - strength) up."""
    return torch.where(images >= (256 * (1 - strength)).floor(), 255 - images, images)


def _posterized(images: Tensor, strength: Tensor) -> Tensor:
    """Clears the lowest bits of each byte."""
    step = 2 ** (MAX_BITS * strength).round()
    return (images / step).floor() * step


def _stretched(images: Tensor) -> Tensor:
    """Stretches each colour's values to 0 .. 255 (autocontrast)."""
    low, high = images.amin((1, 2), keepdim=True), images.amax((1, 2), keepdim=True)
    stretched = ((images - low) * (255 / (high - low).clamp(min=1))).floor()
    return torch.where(high > low, stretched, images)


def _equalized(images: Tensor) -> Tensor:
    """Equalises each colour's histogram like Pillow's `ImageOps.equalize`.

    A value's result depends on the number of darker pixels, which is its index among the sorted values.
    """
    batch, height, width, _ = images.shape
    colours = images.permute(0, 3, 1, 2).reshape(batch, 3, -1).contiguous()
    ordered = colours.sort(-1).values
    darker = torch.searchsorted(ordered, colours)
    brightest = (colours == ordered[..., -1:]).sum(-1, keepdim=True)
    step = (height * width - brightest) // 255
    level = (darker + step // 2) // step.clamp(min=1)
    equal = torch.where(step > 0, level.clamp(max=255).to(images.dtype), colours)
    return equal.reshape(batch, 3, height, width).permute(0, 2, 3, 1)


def _blended(images: Tensor, change: Tensor, strength: Tensor) -> Tensor:
    """Blends with black (brightness), grey (colour), the mean grey (contrast) or a smoothed image (sharpness)."""
    red, green, blue = images.split(1, -1)
    grey = GREY[0] * red + GREY[1] * green + GREY[2] * blue
    base = torch.where(change == Change.BRIGHTNESS, torch.zeros_like(images), _smoothed(images))
    base = torch.where(change == Change.COLOR, grey, base)
    base = torch.where(change == Change.CONTRAST, grey.mean((1, 2), keepdim=True).round(), base)
    is_blend = (change == Change.COLOR) | (change == Change.CONTRAST)
    is_blend = is_blend | (change == Change.BRIGHTNESS) | (change == Change.SHARPNESS)
    factor = 1 + torch.where(is_blend, MAX_BLEND * strength, 0)
    return torch.lerp(base, images, factor).clamp(0, 255)


def _smoothed(images: Tensor) -> Tensor:
    """Applies Pillow's SMOOTH: a 3 x 3 mean with weight 5 at the centre; edge pixels stay."""
    planes = images.permute(0, 3, 1, 2)
    inner = planes[..., 1:-1, 1:-1]
    mean = (9 * F.avg_pool2d(planes, 3, 1) + 4 * inner) / 13
    return F.pad(mean - inner, (1, 1, 1, 1)).add(planes).permute(0, 2, 3, 1)
