"""Images of every kind become the pixels that a person sees: the same picture in another file is the same batch."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from src.datamodules.images.decode import NUM_DRAWS, decode, decode_whole, load
from src.datamodules.images.rendering import AS_STORED, DEFAULT, ORIENTATION, Rendering
from src.errors import UserError
from tests.support.tiny_mobilenet import encoded, picture

SIZE = 16


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def with_orientation(image: Image.Image, kind: str, orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return saved(image, kind, exif=exif.tobytes(), **options)


def both(data: bytes, rendering: Rendering = DEFAULT) -> list[np.ndarray]:
    """Returns an evaluation's and a training's pixels."""
    draws = np.random.default_rng(3).random(NUM_DRAWS)
    return [decode(data, SIZE, rendering=rendering), decode(data, SIZE, draws, rendering)]


def assert_same(one: bytes, other: bytes, most: int = 0, rendering: Rendering = DEFAULT) -> None:
    for a, b in zip(both(one, rendering), both(other, rendering), strict=True):
        assert np.abs(a.astype(int) - b).max() <= most


COLOUR = picture(48, 64)
GREY = picture(48, 64, mode="L")
GREY_8 = np.asarray(GREY)
FEW_COLOURS = COLOUR.quantize(32)
SAME: dict[str, tuple[Image.Image, Callable[[], bytes]]] = {
    "bmp": (COLOUR, lambda: saved(COLOUR, "BMP")),
    "tiff": (COLOUR, lambda: saved(COLOUR, "TIFF")),
    "lzw tiff": (COLOUR, lambda: saved(COLOUR, "TIFF", compression="tiff_lzw")),
    "lossless webp": (COLOUR, lambda: saved(COLOUR, "WEBP", lossless=True)),
    "ppm": (COLOUR, lambda: saved(COLOUR, "PPM")),
    "tga": (COLOUR, lambda: saved(COLOUR, "TGA")),
    "lossless jpeg 2000": (COLOUR, lambda: saved(COLOUR, "JPEG2000")),
    "opaque alpha": (COLOUR, lambda: saved(COLOUR.convert("RGBA"), "PNG")),
    "palette": (FEW_COLOURS.convert("RGB"), lambda: saved(FEW_COLOURS, "PNG")),
    "gif": (FEW_COLOURS.convert("RGB"), lambda: saved(FEW_COLOURS, "GIF")),
    "animated gif": (
        FEW_COLOURS.convert("RGB"),
        lambda: saved(FEW_COLOURS, "GIF", save_all=True, append_images=[picture(48, 64, 9)]),
    ),
    "animated webp": (
        COLOUR, lambda: saved(COLOUR, "WEBP", lossless=True, save_all=True, append_images=[picture(48, 64, 9)]),
    ),
    "animated png": (COLOUR, lambda: saved(COLOUR, "PNG", save_all=True, append_images=[picture(48, 64, 9)])),
    "pages of a tiff": (COLOUR, lambda: saved(COLOUR, "TIFF", save_all=True, append_images=[picture(48, 64, 9)])),
    "grey": (GREY.convert("RGB"), lambda: saved(GREY, "PNG")),
    "grey with alpha": (GREY.convert("RGB"), lambda: saved(GREY.convert("LA"), "PNG")),
    "black and white": (GREY.convert("1").convert("RGB"), lambda: saved(GREY.convert("1"), "PNG")),
    "fax tiff": (
        GREY.convert("1").convert("RGB"), lambda: saved(GREY.convert("1"), "TIFF", compression="group4"),
    ),
    "16-bit png": (GREY.convert("RGB"), lambda: saved(Image.fromarray(GREY_8.astype(np.uint16) * 257), "PNG")),
    "16-bit tiff": (GREY.convert("RGB"), lambda: saved(Image.fromarray(GREY_8.astype(np.uint16) * 257), "TIFF")),
    "big-endian 16-bit tiff": (
        GREY.convert("RGB"), lambda: saved(Image.fromarray((GREY_8.astype(np.uint16) * 257).astype(">u2")), "TIFF"),
    ),
    "16-bit pgm": (GREY.convert("RGB"), lambda: saved(Image.fromarray(GREY_8.astype(np.uint16) * 257), "PPM")),
    "float tiff": (GREY.convert("RGB"), lambda: saved(Image.fromarray(GREY_8.astype(np.float32) / 255), "TIFF")),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_the_same_picture_in_another_file_is_the_same_batch(case: str) -> None:
    image, other = SAME[case]
    assert_same(saved(image, "PNG"), other())
    assert not np.array_equal(decode(other(), SIZE), decode(saved(picture(48, 64, 5), "PNG"), SIZE))


def test_a_progressive_jpeg_is_the_same_batch() -> None:
    assert_same(saved(COLOUR, "JPEG", quality=95), saved(COLOUR, "JPEG", quality=95, progressive=True))


def test_a_cmyk_jpeg_has_the_colours_of_rgb() -> None:
    """Pillow writes it with Adobe's marker and its inverted values."""
    assert_same(saved(COLOUR, "JPEG", quality=95), saved(COLOUR.convert("CMYK"), "JPEG", quality=95), most=12)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_an_image_is_turned_as_its_exif_says(kind: str, orientation: int) -> None:
    """libjpeg-turbo and Pillow alike; 2 pixels of height and width are left over by JPEG's blocks."""
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    data = with_orientation(picture(48, 64), kind, orientation, **options)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert_same(data, saved(expected, "PNG"))
    assert np.array_equal(decode_whole(data, DEFAULT), np.asarray(expected))
    if kind == "JPEG" and orientation > 1:
        assert not np.array_equal(decode_whole(data, DEFAULT), decode_whole(data))


@pytest.mark.parametrize("orientation", [3, 6, 7])
def test_a_large_photograph_is_turned_at_its_reduced_size(orientation: int) -> None:
    data = with_orientation(picture(900, 1200), "JPEG", orientation, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert_same(data, saved(upright, "JPEG", quality=95), most=6)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_of_no_meaning_is_ignored(orientation: int) -> None:
    assert_same(with_orientation(COLOUR, "JPEG", orientation), saved(COLOUR, "JPEG"))


def test_an_orientation_in_xmp_turns_an_image() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = saved(COLOUR, "JPEG", xmp=xmp)
    assert_same(data, with_orientation(COLOUR, "JPEG", 6))
    assert not np.array_equal(decode(data, SIZE), decode(saved(COLOUR, "JPEG"), SIZE))


# Transparency.


def transparent(colour: tuple[int, int, int]) -> Image.Image:
    """Returns a red square on transparent pixels that hide `colour`."""
    image = Image.new("RGBA", (40, 40), (*colour, 0))
    image.paste((200, 0, 0, 255), (10, 10, 30, 30))
    return image


def on(colour: str) -> bytes:
    image = Image.new("RGB", (40, 40), colour)
    image.paste((200, 0, 0), (10, 10, 30, 30))
    return saved(image, "PNG")


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("hidden", [(0, 0, 0), (255, 255, 255), (0, 255, 0)])
def test_transparent_pixels_show_the_background(kind: str, hidden: tuple[int, int, int]) -> None:
    data = saved(transparent(hidden), kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert_same(data, on("white"))
    assert_same(data, on("#102030"), rendering=Rendering("#102030"))


def test_half_transparent_pixels_are_mixed() -> None:
    image = Image.new("RGBA", (20, 20), (0, 0, 0, 51))
    assert decode_whole(saved(image, "PNG"), DEFAULT).mean() == 204


def palette_with_alpha() -> bytes:
    image = Image.new("P", (40, 40), 0)
    image.putpalette([0, 255, 0, 200, 0, 0])
    image.paste(1, (10, 10, 30, 30))
    return saved(image, "PNG", transparency=0)


def rgb_with_a_transparent_colour() -> bytes:
    image = Image.new("RGB", (40, 40), (0, 255, 0))
    image.paste((200, 0, 0), (10, 10, 30, 30))
    return saved(image, "PNG", transparency=(0, 255, 0))


@pytest.mark.parametrize("data", [palette_with_alpha(), rgb_with_a_transparent_colour()], ids=["palette", "rgb"])
def test_a_transparent_colour_shows_the_background(data: bytes) -> None:
    assert_same(data, on("white"))


def test_a_black_logo_on_nothing_is_seen() -> None:
    image = Image.new("LA", (40, 40), (0, 0))
    image.paste((0, 255), (10, 10, 30, 30))
    assert 0 < decode_whole(saved(image, "PNG"), DEFAULT).mean() < 255


# Depth.


def test_a_16_bit_ramp_keeps_its_mean() -> None:
    ramp = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    for kind in ("PNG", "TIFF"):
        pixels = decode_whole(saved(Image.fromarray(ramp), kind), DEFAULT)
        assert pixels.mean() == pytest.approx(127.5, abs=0.01)
        assert np.array_equal(pixels[..., 0], np.rint(ramp / 257))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (np.linspace(0, 4095, 400).astype(np.uint16), 0, 4095),
        (np.linspace(-1000, 1000, 400).astype(np.int32), -1000, 1000),
        (np.linspace(0, 2**20, 400).astype(np.int32), 0, 2**20),
        (np.linspace(0, 255, 400).astype(np.float32), 0, 255),
    ],
    ids=["12 bits in 16", "signed", "32 bits", "float to 255"],
)
def test_a_given_range_is_black_to_white(values: np.ndarray, low: float, high: float) -> None:
    data = saved(Image.fromarray(values.reshape(20, 20)), "TIFF")
    pixels = decode_whole(data, Rendering(value_range=(low, high)))[..., 0].ravel()
    assert pixels[0] == 0 and pixels[-1] == 255 and (np.diff(pixels.astype(int)) >= 0).all()
    halves = decode_whole(data, Rendering(value_range=(low, (low + high) / 2)))
    assert (halves[10:] == 255).all()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[0, 70000]], np.int32), "from 0 to 70,000, have no fixed white"),
        (np.array([[0, 254.5]], np.float32), "pixel values from 0 to 254.5, expected 0 to 1"),
        (np.array([[-0.5, 1]], np.float32), "pixel values from -0.5 to 1, expected 0 to 1"),
        (np.array([[0, np.nan]], np.float32), "pixels that are no number"),
    ],
)
def test_values_of_no_known_range_are_refused(values: np.ndarray, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.tiff").write_bytes(saved(Image.fromarray(values), "TIFF"))
    with pytest.raises(UserError) as raised:
        load(tmp_path / "a.tiff", SIZE)
    assert reason in str(raised.value)
    assert "number" in reason or "give datamodule.value_range=[BLACK,WHITE]" in str(raised.value)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"datamodule\.background=whiet is not a colour"):
        Rendering("whiet")
    with pytest.raises(UserError, match=r"datamodule\.value_range=\[5,5\] is no range"):
        Rendering(value_range=(5, 5))


# Damage.


def test_bytes_between_the_segments_of_a_jpeg_are_skipped() -> None:
    data = encoded(COLOUR)
    begin = data.find(b"\xff\xdb")
    stray = data[:begin] + b"\0\0" + data[begin:]
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(stray, "RGB")
    assert_same(stray, data)
    assert np.array_equal(decode_whole(stray), decode_whole(data))


def test_a_jpeg_with_a_trailer_instead_of_its_end_is_read() -> None:
    """As the panoramas of some telephones, which Pillow opens without loss."""
    data = encoded(COLOUR)
    assert_same(data[:-2] + b"SEFT" * 500, data)


def test_a_jpeg_whose_pixels_are_lost_is_refused(tmp_path: Path) -> None:
    data = bytearray(encoded(picture(600, 800)))
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(UserError, match="premature end of data segment"):
        load(tmp_path / "a.jpg", SIZE)


def test_published_images_are_decoded_as_they_are_stored() -> None:
    """Bit by bit as before: no orientation, hidden colours, and Pillow's own conversion."""
    turned = with_orientation(COLOUR, "JPEG", 6)
    assert np.array_equal(decode(turned, SIZE, rendering=AS_STORED), decode(saved(COLOUR, "JPEG"), SIZE))
    hidden = saved(transparent((0, 255, 0)), "PNG")
    assert np.array_equal(decode_whole(hidden), np.asarray(Image.open(io.BytesIO(hidden)).convert("RGB")))


OTHERS = Path(np.__file__).parents[1]  # where packages are


@pytest.mark.parametrize(
    "name",
    [
        "sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg",
        "matplotlib/mpl-data/sample_data/grace_hopper.jpg", "matplotlib/mpl-data/sample_data/logo2.png",
        "matplotlib/mpl-data/sample_data/Minduka_Present_Blue_Pack.png", "matplotlib/mpl-data/images/home_large.png",
        "scipy/ndimage/tests/dots.png",
    ],
)  # fmt: skip
def test_images_of_other_packages_are_as_pillow_shows_them_on_white(name: str) -> None:
    path = OTHERS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    with Image.open(path) as image:
        layers = ImageOps.exif_transpose(image).convert("RGBA")
    expected = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers).convert("RGB")
    assert np.array_equal(decode_whole(path.read_bytes(), DEFAULT), np.asarray(expected))
