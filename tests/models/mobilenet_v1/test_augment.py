"""Each augmentation of training images against its definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu import triton_helpers
from src.gpu.replace import replace_submodules
from src.models.mobilenet_v1.augment import GREY, LIGHTING, Augment, crop_and_flip, cutout_masks, pasted
from src.models.mobilenet_v1.fast import images
from src.models.mobilenet_v1.task import IMAGE_REPLACEMENTS

PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1 / 255, 1 / 255, 1 / 255)}  # leaves bytes unchanged


def noise(batch: int = 4, height: int = 8, width: int = 10, low: int = 1, high: int = 256) -> Tensor:
    return torch.randint(low, high, (batch, height, width, 3), generator=torch.Generator().manual_seed(1)).byte()


def channels_last(images: Tensor) -> Tensor:
    """Returns images as [batch, height, width, 3]."""
    return images.permute(0, 2, 3, 1)


def test_images_are_normalised_in_channels_last_order() -> None:
    pixels, mean, std = noise(), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    images = Augment(mean, std).eval()(pixels)
    assert images.shape == (4, 3, 8, 10) and images.is_contiguous(memory_format=torch.channels_last)
    for colour in range(3):
        expected = (pixels[..., colour] / 255 - mean[colour]) / std[colour]
        torch.testing.assert_close(images[:, colour], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("height", [8, 23])  # 960 or 2,760 numbers: one program, or two that begin at other colours
def test_the_kernel_standardises_as_plain_torch(
    height: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    calls = list[torch.dtype]()
    monkeypatch.setattr(images, "launch", lambda *a, **k: (calls.append(a[2].dtype), triton_helpers.launch(*a, **k)))
    augment, pixels = Augment(), noise(height=height, low=0).to(dtype)
    plain = augment.standardise(pixels)
    replace_submodules(augment, IMAGE_REPLACEMENTS)
    result = augment.standardise(pixels)
    assert calls == [dtype] and result.is_contiguous()
    torch.testing.assert_close(result, plain, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(augment.standardise(pixels.mT.contiguous().mT), plain, rtol=0, atol=0)
    replace_submodules(augment, IMAGE_REPLACEMENTS, "off")
    assert torch.equal(augment.standardise(pixels), plain) and len(calls) == 1


def test_evaluation_applies_no_augmentation() -> None:
    augment = Augment(pad=2, flip=True, jitter=0.4, lighting=0.1, cutout=4).eval()
    assert torch.equal(augment(noise()), Augment().eval()(noise()))


def test_constants_are_not_in_the_state_dict() -> None:
    assert not Augment().state_dict()


def test_images_are_cropped_at_random_from_padded_ones() -> None:
    torch.manual_seed(0)
    pixels, pad, seen = noise(1), 2, set()
    padded = torch.nn.functional.pad(pixels[0], (0, 0, pad, pad, pad, pad))
    cuts = {(y, x): padded[y : y + 8, x : x + 10] for y in range(5) for x in range(5)}
    for result in crop_and_flip(pixels.expand(400, -1, -1, -1), pad, flip=False):
        matches = [offset for offset, cut in cuts.items() if torch.equal(cut, result)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert seen == set(cuts)


def test_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    pixels = noise(1).expand(400, -1, -1, -1)
    results = crop_and_flip(pixels, 0, flip=True)
    mirrored = (results == pixels.flip(2)).all(-1).all(-1).all(-1)
    same = (results == pixels).all(-1).all(-1).all(-1)
    assert (mirrored ^ same).all() and 160 < mirrored.sum() < 240


def test_jitter_is_brightness_contrast_and_saturation_in_any_order() -> None:
    """Applied one by one, in two orders, on colours that stay within 0 .. 255."""
    torch.manual_seed(0)
    pixels = noise(low=80, high=140)
    augment = Augment(**PLAIN, jitter=0.2).train()
    result = channels_last(augment(pixels))
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


def test_jittered_colours_are_clipped() -> None:
    torch.manual_seed(0)
    result = Augment(**PLAIN, jitter=0.9, lighting=1.0).train()(noise(64))
    assert result.min() == 0 and result.max() == 255


def test_lighting_is_added_along_the_colour_components() -> None:
    """Equal for all pixels of an image; over many images with the expected covariance."""
    torch.manual_seed(0)
    pixels = torch.full((4000, 2, 2, 3), 128, dtype=torch.uint8)
    added = channels_last(Augment(**PLAIN, lighting=0.1).train()(pixels)) - 128
    assert (added == added[:, :1, :1]).all()
    components = torch.tensor(LIGHTING)
    torch.testing.assert_close(torch.cov(added[:, 0, 0].T), 0.01 * components @ components.T, rtol=0.1, atol=0.1)


def test_cutout_masks_a_random_square() -> None:
    torch.manual_seed(0)
    masks = cutout_masks(torch.zeros(500, 12, 16, 3), 4)[..., 0]
    for mask in masks:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert torch.equal(mask, torch.outer(mask.any(1), mask.any(0)))  # a rectangle
        for indices, size in ((rows, 12), (columns, 16)):
            assert len(indices) == indices.max() - indices.min() + 1 <= 4
            assert len(indices) == 4 or indices.min() == 0 or indices.max() == size - 1
    assert masks.any(0).all() and masks.sum((1, 2)).max() == 16
    result = Augment(cutout=4).train()(noise(20, 12, 16))
    blank = (result == 0).all(1)
    assert blank.any(-1).any(-1).all() and (blank.sum((1, 2)) <= 16).all()


def test_cutmix_pastes_rectangles_and_returns_own_shares() -> None:
    torch.manual_seed(0)
    pictures = torch.arange(1.0, 2001)[:, None, None, None].expand(-1, 3, 10, 20)
    result, share = pasted(pictures, torch.tensor(0.5))
    inside = (result == pictures.flip(0)).all(1)
    assert (inside | (result == pictures).all(1)).all()
    torch.testing.assert_close(share, 1 - inside.float().mean((1, 2)))
    for mask in inside[:100]:
        assert torch.equal(mask, torch.outer(mask.any(1), mask.any(0)))
    assert inside.any(0).all() and share.min() < 0.3
    # The side is the root of a uniform number: for 1 image in 25 it is below 2 of 10 pixels and the rectangle empty.
    assert (share == 1).float().mean().item() == pytest.approx(0.5 + 0.5 * 0.2**2, abs=0.04)
    assert torch.equal(pasted(pictures, torch.tensor(0.0))[0], pictures)


@pytest.mark.parametrize("options", [{"pad": 2}, {"flip": True}, {"jitter": 0.4}, {"lighting": 0.1}, {"cutout": 4}])
def test_each_augmentation_is_random(options: dict[str, float]) -> None:
    torch.manual_seed(0)
    augment = Augment(**options).train()  # type: ignore[arg-type]
    assert not torch.equal(augment(noise(8)), augment(noise(8)))


def test_images_are_not_rounded_to_bytes() -> None:
    """A jitter keeps fractions of a byte, and float64."""
    result = Augment(**PLAIN, jitter=0.4).double().train()(noise(low=100, high=120))
    assert result.dtype == torch.float64
    assert ((result - result.round()).abs() > 1e-3).any()
