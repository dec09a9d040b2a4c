"""Standardised images by the kernel of `images_triton`."""

import torch
from jaxtyping import Float, Num
from torch import Tensor

from src.gpu.triton_helpers import can_take, launch
from src.models.mobilenet_v1.augment import Augment
from src.models.mobilenet_v1.fast import images_triton as kernels

BLOCK = 2048


class FastAugment(Augment):
    """Standardises images in one pass; plain torch converts bytes to floating point numbers in a pass of its own."""

    def standardise(self, pixels: Num[Tensor, "batch height width 3"]) -> Float[Tensor, "batch height width 3"]:
        scale = self.scale
        is_supported = scale.dtype == torch.float32 and pixels.dtype in (torch.uint8, torch.float32)
        is_supported = is_supported and pixels.is_contiguous() and not pixels.requires_grad
        if not can_take("body", scale, is_supported, pixels=pixels.dtype, contiguous=pixels.is_contiguous()):
            return super().standardise(pixels)
        images = torch.empty_like(pixels, dtype=scale.dtype)
        grid = (-(-pixels.numel() // BLOCK),)
        launch(kernels.standardise, grid, pixels, scale, self.shift, images, pixels.numel(), BLOCK=BLOCK, num_warps=4)
        return images
