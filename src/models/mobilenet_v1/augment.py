"""Normalisation and random augmentation of whole batches of images on the device.

Random numbers come from the device's default generator and nothing synchronises, so that a CUDA graph can hold it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Num, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from src.config.ranges import NotNegative, Number, Positive, Share
from src.errors import UserError
from src.models.mobilenet_v1.trivial import GREY, apply_changes, draw_changes
from src.training.image_classification import IMAGENET_MEAN, IMAGENET_STD

# Principal components of ImageNet's colours (Krizhevsky et al. 2012) with MXNet's values: one per column, times the
# square root of its variance, in units of 1/255.
LIGHTING = (
    (55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009),
    (55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140),
    (55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203),
)


class Augment(nn.Module):
    """Converts bytes to network input: normalises, and augments in training.

    Args:
        mean, std: of each colour, where white is 1.
        pad: black pixels around an image before a random crop of the original size.
        flip: whether to mirror images horizontally with probability 1/2.
        jitter: brightness, contrast and saturation change by random factors from 1 - jitter to 1 + jitter.
        lighting: standard deviation of the random weights of the principal colour components that are added.
        cutout: side in pixels of a square at a random position that is set to the mean colour; 0 for none.
        trivial: TrivialAugment's largest strength, from 0 (off) to 1, see `src.models.mobilenet_v1.trivial`.
    """

    scale: Tensor  # of a byte
    shift: Tensor
    grey: Tensor
    components: Tensor

    def __init__(
        self,
        mean: Sequence[Share] = IMAGENET_MEAN,
        std: Sequence[Positive] = IMAGENET_STD,
        pad: Number = 0,
        flip: bool = False,
        jitter: Share = 0.0,
        lighting: NotNegative = 0.0,
        cutout: Number = 0,
        trivial: Share = 0.0,
    ) -> None:
        super().__init__()
        if not len(mean) == len(std) == 3:
            raise UserError("model.task.augment: give three numbers for mean and for std, of red, green and blue")
        self.pad, self.flip = pad, flip
        self.jitter, self.lighting = jitter, lighting
        self.cutout, self.trivial = cutout, trivial
        means, deviations = torch.tensor(mean), torch.tensor(std)
        # Constants of code and config, so not in the state_dict.
        self.register_buffer("scale", 1 / (255 * deviations), persistent=False)
        self.register_buffer("shift", -means / deviations, persistent=False)
        self.register_buffer("grey", torch.tensor(GREY), persistent=False)
        self.register_buffer("components", torch.tensor(LIGHTING), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Returns normalised images in channels_last order."""
        if self.training and (self.pad or self.flip):
            pixels = crop_and_flip(pixels, self.pad, self.flip)
        if self.training and self.trivial:
            pixels = apply_changes(pixels, *draw_changes(len(pixels), self.trivial, pixels.device))
        if self.training and (self.jitter or self.lighting):
            pixels = self._jitter_colours(pixels.to(self.scale.dtype))
        images = self.standardise(pixels)
        if self.training and self.cutout:
            images = images.masked_fill(cutout_masks(images, self.cutout), 0)
        return images.permute(0, 3, 1, 2)

    def standardise(self, pixels: Num[Tensor, "batch height width 3"]) -> Float[Tensor, "batch height width 3"]:
        """Returns images with mean 0 and deviation 1 of images of 0 to 255, bytes or not."""
        return torch.addcmul(self.shift, pixels.to(self.scale.dtype), self.scale)

    def _jitter_colours(self, images: Float[Tensor, "batch height width 3"]) -> Float[Tensor, "batch height width 3"]:
        """Returns images of 0 to 255 with random brightness, contrast, saturation and lighting.

        The three jitters are linear and commute, so gluon-cv's random order does not matter. gluon-cv clips to 0 .. 255
        after each; here images are clipped once.
        """
        grey = (images * self.grey).sum(-1, keepdim=True)
        brightness, contrast, saturation = 1 + self.jitter * (
            2 * images.new_empty(3, len(images), 1, 1, 1).uniform_() - 1
        )
        light = (self.lighting * images.new_empty(len(images), 1, 1, 1, 3).normal_() * self.components).sum(-1)
        shift = brightness * (1 - contrast) * grey.mean((1, 2), keepdim=True) + light
        images = brightness * contrast * (saturation * images + (1 - saturation) * grey) + shift
        return images.clamp(0, 255)


def crop_and_flip(
    pixels: UInt8[Tensor, "batch height width 3"], pad: int, flip: bool
) -> UInt8[Tensor, "batch height width 3"]:
    """Returns a random crop of each image with `pad` black pixels around it, randomly mirrored if `flip`."""
    batch, height, width, _ = pixels.shape
    device = pixels.device
    rows = torch.arange(height, device=device) + torch.randint(2 * pad + 1, (batch, 1), device=device)
    columns = torch.arange(width, device=device).expand(batch, width)
    if flip:
        mirrored = torch.randint(2, (batch, 1), device=device).bool()
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = columns + torch.randint(2 * pad + 1, (batch, 1), device=device)
    image = torch.arange(batch, device=device)[:, None, None]
    return F.pad(pixels, (0, 0, pad, pad, pad, pad))[image, rows[:, :, None], columns[:, None, :]]


def cutout_masks(images: Float[Tensor, "batch height width 3"], side: int) -> Bool[Tensor, "batch height width 1"]:
    """Returns the mask of a square around a random pixel of each image, cut off at the borders."""
    batch, height, width, _ = images.shape

    def near(size: int) -> Bool[Tensor, "batch size"]:
        centre = torch.randint(size, (batch, 1), device=images.device)
        distance = torch.arange(size, device=images.device) - centre
        return (distance >= -(side // 2)) & (distance < side - side // 2)

    return (near(height)[:, :, None] & near(width)[:, None, :])[..., None]


def pasted(
    images: Float[Tensor, "batch channels height width"], chance: Float[Tensor, ""]
) -> tuple[Float[Tensor, "batch channels height width"], Float[Tensor, " batch"]]:
    """Applies CutMix (Yun et al. 2019, alpha 1); returns the images and the share of each that is its own.

    With probability `chance` image i gets a rectangle of image batch - 1 - i. The rectangle lies around a random pixel
    and has the images' proportions. Its share of the area, before it is cut off at the borders, is uniform from 0 to 1.
    """
    batch, _, height, width = images.shape
    device = images.device
    side = torch.rand(batch, 1, device=device).sqrt() * (torch.rand(batch, 1, device=device) < chance)

    def within(size: int) -> Bool[Tensor, "batch size"]:
        half = (side * size).long() // 2
        distance = torch.arange(size, device=device) - torch.randint(size, (batch, 1), device=device)
        return (distance >= -half) & (distance < half)

    inside = within(height)[:, :, None] & within(width)[:, None, :]
    return torch.where(inside[:, None], images.flip(0), images), 1 - inside.float().mean((1, 2))
