"""What training sees of an image: each change alone, against its definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from src.models.mobilenet_v1.augment import GREY, LIGHTING, Augment, moved, pasted, squares

PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}  # bytes stay what they are


def noise(batch: int = 4, height: int = 8, width: int = 10, low: int = 1, high: int = 256) -> Tensor:
    return torch.randint(low, high, (batch, height, width, 3), generator=torch.Generator().manual_seed(1)).byte()


def numbers(images: Tensor) -> Tensor:
    """[batch, height, width, 3] again."""
    return images.permute(0, 2, 3, 1)


def test_normalised_in_channels_last_order() -> None:
    pixels, mean, std = noise(), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    images = Augment(mean, std).eval()(pixels)
    assert images.shape == (4, 3, 8, 10) and images.is_contiguous(memory_format=torch.channels_last)
    for colour in range(3):
        expected = (pixels[..., colour] / 255 - mean[colour]) / std[colour]
        torch.testing.assert_close(images[:, colour], expected, rtol=1e-5, atol=1e-5)


def test_an_evaluation_changes_nothing_at_random() -> None:
    busy = Augment(pad=2, flip=True, jitter=0.4, lighting=0.1, cutout=4).eval()
    assert torch.equal(busy(noise()), Augment().eval()(noise()))


def test_constants_are_no_part_of_a_checkpoint() -> None:
    assert not Augment().state_dict()


def test_an_image_is_cut_out_of_itself_with_black_around() -> None:
    torch.manual_seed(0)
    pixels, pad, seen = noise(1), 2, set()
    padded = torch.nn.functional.pad(pixels[0], (0, 0, pad, pad, pad, pad))
    cuts = {(y, x): padded[y : y + 8, x : x + 10] for y in range(5) for x in range(5)}
    for result in moved(pixels.expand(400, -1, -1, -1), pad, flip=False):
        where = [place for place, cut in cuts.items() if torch.equal(cut, result)]
        assert len(where) == 1
        seen.add(where[0])
    assert seen == set(cuts)


def test_every_other_image_is_mirrored() -> None:
    torch.manual_seed(0)
    pixels = noise(1).expand(400, -1, -1, -1)
    results = moved(pixels, 0, flip=True)
    mirrored = (results == pixels.flip(2)).all(-1).all(-1).all(-1)
    same = (results == pixels).all(-1).all(-1).all(-1)
    assert (mirrored ^ same).all() and 160 < mirrored.sum() < 240


def test_jitter_is_brightness_contrast_and_saturation_in_any_order() -> None:
    """One after the other as each is defined, in two orders, on colours that no factor takes out of 0 .. 255."""
    torch.manual_seed(0)
    pixels = noise(low=80, high=140)
    augment = Augment(**PLAIN, jitter=0.2).train()
    result = numbers(augment(pixels))
    torch.manual_seed(0)
    brightness, contrast, saturation = 1 + 0.2 * (2 * torch.rand(3, 4, 1, 1, 1) - 1)

    def grey(x: Tensor) -> Tensor:
        return (x * torch.tensor(GREY)).sum(-1, keepdim=True)

    steps = [
        lambda x: brightness * x,
        lambda x: contrast * x + (1 - contrast) * grey(x).mean((1, 2, 3), keepdim=True),
        lambda x: saturation * x + (1 - saturation) * grey(x),
    ]
    for order in (steps, steps[::-1]):
        x = pixels.float()
        for step in order:
            x = step(x)
        torch.testing.assert_close(result, x, rtol=1e-4, atol=1e-3)


def test_jittered_colours_stay_colours() -> None:
    torch.manual_seed(0)
    result = Augment(**PLAIN, jitter=0.9, lighting=1.0).train()(noise(64))
    assert result.min() == 0 and result.max() == 255


def test_light_is_added_along_the_components_of_colour() -> None:
    """The same to each pixel of an image; over many images with the variance of the components' shares."""
    torch.manual_seed(0)
    pixels = torch.full((4000, 2, 2, 3), 128, dtype=torch.uint8)
    added = numbers(Augment(**PLAIN, lighting=0.1).train()(pixels)) - 128
    assert (added == added[:, :1, :1]).all()
    components = torch.tensor(LIGHTING)
    torch.testing.assert_close(torch.cov(added[:, 0, 0].T), 0.01 * components @ components.T, rtol=0.1, atol=0.1)


def test_a_square_is_blotted_out() -> None:
    torch.manual_seed(0)
    masks = squares(torch.zeros(500, 12, 16, 3), 4)[..., 0]
    for mask in masks:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert torch.equal(mask, torch.outer(mask.any(1), mask.any(0)))  # a rectangle
        for places, size in ((rows, 12), (columns, 16)):
            assert len(places) == places.max() - places.min() + 1 <= 4
            assert len(places) == 4 or places.min() == 0 or places.max() == size - 1
    assert masks.any(0).all() and masks.sum((1, 2)).max() == 16
    result = Augment(cutout=4).train()(noise(20, 12, 16))
    blank = (result == 0).all(1)
    assert blank.any(-1).any(-1).all() and (blank.sum((1, 2)) <= 16).all()


def test_rectangles_of_other_images_and_the_share_that_stays() -> None:
    torch.manual_seed(0)
    pictures = torch.arange(1.0, 2001)[:, None, None, None].expand(-1, 3, 10, 20)
    result, share = pasted(pictures, torch.tensor(0.5))
    inside = (result == pictures.flip(0)).all(1)
    assert (inside | (result == pictures).all(1)).all()
    torch.testing.assert_close(share, 1 - inside.float().mean((1, 2)))
    for mask in inside[:100]:
        assert torch.equal(mask, torch.outer(mask.any(1), mask.any(0)))
    assert inside.any(0).all() and share.min() < 0.3
    # The side is the root of a uniform number, so for 1 image in 25 it is less than 2 of 10 pixels, and nothing is cut.
    assert (share == 1).float().mean().item() == pytest.approx(0.5 + 0.5 * 0.2**2, abs=0.04)
    assert torch.equal(pasted(pictures, torch.tensor(0.0))[0], pictures)


@pytest.mark.parametrize("options", [{"pad": 2}, {"flip": True}, {"jitter": 0.4}, {"lighting": 0.1}, {"cutout": 4}])
def test_each_change_is_drawn_anew(options: dict[str, float]) -> None:
    torch.manual_seed(0)
    augment = Augment(**options).train()  # type: ignore[arg-type]
    assert not torch.equal(augment(noise(8)), augment(noise(8)))


def test_bytes_are_rounded_nowhere() -> None:
    """Half a step of a byte is kept by a jitter, and so are doubles."""
    result = Augment(**PLAIN, jitter=0.4).double().train()(noise(low=100, high=120))
    assert result.dtype == torch.float64
    assert ((result - result.round()).abs() > 1e-3).any()
