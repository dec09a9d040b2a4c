"""Decoding of image files: crops, sizes, colours, and files that are not images."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from src.datamodules.images.decode import (
    AREA,
    NUM_DRAWS,
    RATIO,
    Box,
    centre_box,
    decode,
    decode_whole,
    load,
    random_box,
    reduced,
)
from src.errors import UserError
from tests.support.tiny_mobilenet import encoded, picture

SIDES = [(500, 375), (375, 500), (224, 224), (60, 1000), (1000, 60), (1, 1), (3, 2)]


def draws(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(NUM_DRAWS)


@pytest.mark.parametrize(("width", "height"), SIDES)
def test_a_random_box_lies_within_the_image(width: int, height: int) -> None:
    for seed in range(200):
        box = random_box(width, height, draws(seed))
        assert box.left >= 0 and box.top >= 0 and box.width > 0 and box.height > 0
        assert box.left + box.width <= width and box.top + box.height <= height


def test_random_boxes_have_the_published_areas_and_shapes() -> None:
    """In a square image nearly every attempt lies within it, so area and aspect ratio are uniform."""
    boxes = [random_box(1000, 1000, draws(seed)) for seed in range(2000)]
    areas = np.array([box.width * box.height for box in boxes]) / 1000**2
    shapes = np.array([box.width / box.height for box in boxes])
    assert AREA[0] - 0.01 < areas.min() < 0.1 and areas.max() > 0.9
    assert RATIO[0] - 0.01 < shapes.min() < 0.77 and 1.3 < shapes.max() < RATIO[1] + 0.01
    assert np.median(areas) == pytest.approx(0.52, abs=0.04)
    lefts = np.array([box.left / (1000 - box.width) for box in boxes if box.width < 900])
    assert np.quantile(lefts, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


def test_an_image_too_narrow_for_a_random_box_gives_its_centre() -> None:
    assert random_box(1000, 10, draws(0)) == Box(493, 0, 13, 10)
    assert random_box(10, 1000, draws(0)) == Box(0, 493, 10, 13)


def test_an_evaluation_crops_the_centre() -> None:
    """As resizing the shorter side to 256 and cropping 224 x 224."""
    assert centre_box(512, 256) == Box(144, 16, 224, 224)
    assert centre_box(375, 500) == Box(23, 86, 328, 328)
    assert centre_box(1, 1) == Box(0, 0, 1, 1)


@pytest.mark.parametrize("size", [16, 64, 224])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (150, 400), (1800, 1500)])
def test_the_centre_agrees_with_pillow(width: int, height: int, size: int) -> None:
    """Also if libjpeg decodes at a reduced size."""
    data = encoded(picture(height, width))
    left, top, across, down = centre_box(width, height)
    whole = Image.open(io.BytesIO(data))
    expected = whole.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + across, top + down))
    pixels = decode(data, size)
    assert pixels.shape == (size, size, 3) and pixels.dtype == np.uint8
    difference = np.abs(pixels.astype(int) - np.asarray(expected).astype(int))
    assert difference.mean() < 2.5 and difference.max() < 24


def test_large_images_are_decoded_at_a_reduced_size() -> None:
    data, whole = encoded(picture(900, 1200)), Box(0, 0, 1200, 900)
    sides = {size: reduced(data, (1200, 900), whole, size) for size in (225, 224, 112, 50, 8)}
    assert {size: pixels.shape[:2] for size, (pixels, _) in sides.items()} == {
        225: (450, 600), 224: (450, 600), 112: (225, 300), 50: (113, 150), 8: (113, 150),
    }  # fmt: skip
    assert all(box == (0, 0, pixels.shape[1], pixels.shape[0]) for pixels, box in sides.values())
    assert reduced(data, (1200, 900), whole, 226)[0].shape == (900, 1200, 3)


def test_random_crops_are_those_of_their_boxes() -> None:
    """The pixels hold their own coordinates, so their means tell where the crop is."""
    rows, columns = np.mgrid[0:250, 0:250].astype(np.uint8)
    data = encoded(Image.fromarray(np.stack([rows, columns, rows], -1)), "PNG")
    for seed in range(20):
        box = random_box(250, 250, draws(seed))
        part = decode(data, 32, draws(seed)).astype(float)
        assert part[..., 0].mean() == pytest.approx(box.top + (box.height - 1) / 2, abs=1)
        assert part[..., 1].mean() == pytest.approx(box.left + (box.width - 1) / 2, abs=1)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("RGB", "JPEG"), ("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("L", "PNG"), ("RGBA", "PNG"),
        ("RGB", "WEBP"), ("RGB", "BMP"),
    ],
)  # fmt: skip
def test_every_kind_of_image_becomes_rgb(mode: str, kind: str) -> None:
    image = picture(40, 50, mode=mode)
    expected = np.asarray(image.convert("RGB")).astype(int)
    pixels = decode_whole(encoded(image, kind))
    assert pixels.shape == (40, 50, 3)
    assert np.abs(pixels - expected).mean() < 4
    assert decode(encoded(image, kind), 32).shape == (32, 32, 3)


def test_a_palette_becomes_rgb() -> None:
    image = picture(40, 50).convert("P")
    assert np.array_equal(decode_whole(encoded(image, "PNG")), np.asarray(image.convert("RGB")))


def bad_files() -> dict[str, bytes]:
    photo = encoded(picture(200, 300))
    return {
        "empty.jpg": b"", "text.jpg": b"this is no image", "half.jpg": photo[: len(photo) // 2],
        "head.jpg": photo[:200], "half.png": encoded(picture(200, 300), "PNG")[:1000],
    }  # fmt: skip


@pytest.mark.parametrize("name", bad_files())
def test_a_file_that_does_not_decode_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bad_files()[name])
    with pytest.raises(UserError) as raised:
        load(tmp_path / name, 32)
    line = str(raised.value)
    assert line.startswith(f"{tmp_path / name} cannot be decoded as an image (") and "\n" not in line
    assert line.endswith("replace or remove it")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*gone\.jpg \(No such file"):
        load(tmp_path / "gone.jpg", 32)
