"""TrivialAugment's operations against Pillow's, which the paper used."""

import math
from collections.abc import Callable

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from src.models.mobilenet_v1.augment import Augment
from src.models.mobilenet_v1.trivial import Change, apply_changes, draw_changes

# Not 1: a rotation by 135 degrees has ties on its diagonals.
STRENGTHS = (-0.98, -0.61, -0.2, 0.0, 0.13, 0.5, 0.83, 0.98)


def affine(
    a: float = 1, b: float = 0, c: float = 0, d: float = 0, e: float = 1, f: float = 0
) -> Callable[..., Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, (a, b, c, d, e, f))


def pillows(change: Change, s: float) -> Callable[[Image.Image], Image.Image]:
    """Returns Pillow's operation of the paper's widest space for an image of 32 x 32."""
    turn = math.radians(135 * s)
    cosine, sine = math.cos(turn), math.sin(turn)
    return {
        Change.IDENTITY: lambda image: image,
        Change.AUTOCONTRAST: ImageOps.autocontrast,
        Change.EQUALIZE: ImageOps.equalize,
        Change.ROTATE: affine(cosine, -sine, 16 * (1 - cosine + sine), sine, cosine, 16 * (1 - cosine - sine)),
        Change.SOLARIZE: lambda image: ImageOps.solarize(image, int(256 - 256 * abs(s))),
        Change.POSTERIZE: lambda image: ImageOps.posterize(image, 8 - round(6 * abs(s))),
        Change.COLOR: lambda image: ImageEnhance.Color(image).enhance(1 + 0.99 * s),
        Change.CONTRAST: lambda image: ImageEnhance.Contrast(image).enhance(1 + 0.99 * s),
        Change.BRIGHTNESS: lambda image: ImageEnhance.Brightness(image).enhance(1 + 0.99 * s),
        Change.SHARPNESS: lambda image: ImageEnhance.Sharpness(image).enhance(1 + 0.99 * s),
        Change.SHEAR_X: affine(b=0.99 * s),
        Change.SHEAR_Y: affine(d=0.99 * s),
        Change.TRANSLATE_X: affine(c=int(32 * s)),
        Change.TRANSLATE_Y: affine(f=int(32 * s)),
    }[change]


def photographs(batch: int = 6) -> Tensor:
    """Returns smooth colours with noise; the first image has low contrast, the second is grey."""
    generator = torch.Generator().manual_seed(2)
    coarse = torch.rand(batch, 3, 5, 5, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic") + 20 * torch.randn(
        batch, 3, 32, 32, generator=generator
    )
    images = smooth.permute(0, 2, 3, 1).clamp(0, 255)
    images[0] = 100 + images[0] / 8
    images[1] = 77
    return images.byte()


# Largest difference from Pillow, which rounds intermediate results to bytes.
ROUNDING = {Change.COLOR: 2, Change.CONTRAST: 2, Change.BRIGHTNESS: 1, Change.SHARPNESS: 2}


@pytest.mark.parametrize("change", Change)
def test_each_change_equals_pillows(change: Change) -> None:
    pixels = photographs()
    for strength in STRENGTHS:
        results = apply_changes(pixels, torch.full((len(pixels),), change), torch.full((len(pixels),), strength))
        images = [pillows(change, strength)(Image.fromarray(image.numpy())) for image in pixels]
        expected = torch.stack([torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in images])
        away = (results - expected.reshape(results.shape)).abs()
        assert (away > ROUNDING.get(change, 0)).float().mean() < 0.001, (
            strength
        )  # pixels of a rotated image that lie between two


def test_each_image_of_a_batch_gets_its_own_change() -> None:
    pixels = photographs()[2:3].expand(len(Change), -1, -1, -1)
    strength = torch.linspace(-1, 1, len(Change))
    together = apply_changes(pixels, torch.tensor(list(Change)), strength)
    for i, change in enumerate(Change):
        alone = apply_changes(pixels[:1], torch.tensor([change]), strength[i : i + 1])
        assert torch.equal(together[i], alone[0]), change


def test_changes_and_strengths_are_uniform() -> None:
    torch.manual_seed(0)
    changes, strengths = draw_changes(28_000, 0.5, torch.device("cpu"))
    counts = torch.bincount(changes, minlength=len(Change))
    assert len(counts) == 14 and (counts - 2000).abs().max() < 200
    for change in Change:
        values = strengths[changes == change]
        assert values.min() < -0.49 and values.max() > 0.49 and values.abs().max() <= 0.5
        assert values.mean().abs() < 0.03 and values.std() == pytest.approx(0.5 / 3**0.5, rel=0.05)


def test_trivial_augment_applies_in_training_only() -> None:
    torch.manual_seed(0)
    pixels = photographs(64)
    augment = Augment(trivial=0.5)
    assert torch.equal(augment.eval()(pixels), Augment().eval()(pixels))
    different = (augment.train()(pixels) != Augment().eval()(pixels)).flatten(1).any(1)
    assert 32 < different.sum() < 64  # some operations change nothing
