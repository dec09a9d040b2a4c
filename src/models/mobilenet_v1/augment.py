"""Bytes to normalised images on the device, with the random changes of training, a whole batch at a time.

Everything is drawn by the device's default generator and nothing waits for the host, so that a CUDA graph can hold it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from src.models.mobilenet_v1.trivial import GREY, changed, drawn
from src.training.image_classification import IMAGENET_MEAN, IMAGENET_STD

# Principal components of ImageNet's colours (Krizhevsky et al. 2012), as MXNet has them: a column each, times the root
# of its variance, in steps of 1/255.
LIGHTING = (
    (55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009),
    (55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140),
    (55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203),
)


class Augment(nn.Module):
    """Makes network input of bytes: normalised always, changed at random in training.

    Args:
        mean, std: of each colour, where white is 1.
        pad: black pixels around an image out of which one of the old size is cut anywhere.
        flip: mirror every other image.
        jitter: brightness, contrast and saturation each change by a factor from 1 - jitter to 1 + jitter.
        lighting: standard deviation of the shares of the principal components of colour that are added.
        cutout: side of a square that is blotted out, anywhere, partly outside too.
        trivial: TrivialAugment's widest strength, from 0 (none) to 1, see `src.models.mobilenet_v1.trivial`.
    """

    scale: Tensor  # of a byte
    shift: Tensor
    grey: Tensor
    components: Tensor

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        pad: int = 0,
        flip: bool = False,
        jitter: float = 0.0,
        lighting: float = 0.0,
        cutout: int = 0,
        trivial: float = 0.0,
    ) -> None:
        super().__init__()
        self.pad, self.flip = pad, flip
        self.jitter, self.lighting = jitter, lighting
        self.cutout, self.trivial = cutout, trivial
        means, deviations = torch.tensor(mean), torch.tensor(std)
        # Constants of the code or the config, not of the training: no part of the state_dict.
        self.register_buffer("scale", 1 / (255 * deviations), persistent=False)
        self.register_buffer("shift", -means / deviations, persistent=False)
        self.register_buffer("grey", torch.tensor(GREY), persistent=False)
        self.register_buffer("components", torch.tensor(LIGHTING), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch 3 height width"]:
        """Normalised images in channels_last order."""
        if self.training and (self.pad or self.flip):
            pixels = moved(pixels, self.pad, self.flip)
        if self.training and self.trivial:
            images = changed(pixels, *drawn(len(pixels), self.trivial, pixels.device)).to(self.scale.dtype)
        else:
            images = pixels.to(self.scale.dtype)
        if self.training and (self.jitter or self.lighting):
            images = self._recoloured(images)
        images = torch.addcmul(self.shift, images, self.scale)
        if self.training and self.cutout:
            images = images.masked_fill(squares(images, self.cutout), 0)
        return images.permute(0, 3, 1, 2)

    def _recoloured(self, images: Float[Tensor, "batch height width 3"]) -> Float[Tensor, "batch height width 3"]:
        """Images of 0 to 255 with other brightness, contrast, saturation and light.

        The three jitters are linear and commute, so that their order, which gluon-cv draws, does not matter; gluon-cv
        clips to 0 .. 255 after each, here they are clipped once.
        """
        grey = (images * self.grey).sum(-1, keepdim=True)
        brightness, contrast, saturation = 1 + self.jitter * (
            2 * images.new_empty(3, len(images), 1, 1, 1).uniform_() - 1
        )
        light = (self.lighting * images.new_empty(len(images), 1, 1, 1, 3).normal_() * self.components).sum(-1)
        shift = brightness * (1 - contrast) * grey.mean((1, 2), keepdim=True) + light
        images = brightness * contrast * (saturation * images + (1 - saturation) * grey) + shift
        return images.clamp(0, 255)


def moved(pixels: UInt8[Tensor, "batch height width 3"], pad: int, flip: bool) -> UInt8[Tensor, "batch height width 3"]:
    """Each image cut at random out of itself with `pad` black pixels around it, and mirrored at random."""
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


def squares(images: Float[Tensor, "batch height width 3"], side: int) -> Bool[Tensor, "batch height width 1"]:
    """Where a square around a random pixel of each image is."""
    batch, height, width, _ = images.shape

    def near(size: int) -> Bool[Tensor, "batch size"]:
        centre = torch.randint(size, (batch, 1), device=images.device)
        distance = torch.arange(size, device=images.device) - centre
        return (distance >= -(side // 2)) & (distance < side - side // 2)

    return (near(height)[:, :, None] & near(width)[:, None, :])[..., None]


def pasted(
    images: Float[Tensor, "batch channels height width"], chance: Float[Tensor, ""]
) -> tuple[Float[Tensor, "batch channels height width"], Float[Tensor, " batch"]]:
    """Images with a rectangle of the image as far from the batch's other end, and the share that stays their own.

    The rectangle lies around a random pixel and has the images' proportions; its area, before what lies outside is cut
    off, is uniform from none to all (Yun et al. 2019, alpha 1). An image gets one by `chance`.
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
