"""Probabilities of classes of images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from src.datamodules.images.base import ImageDataModule
from src.datamodules.images.rendering import rgb_of
from src.errors import UserError
from src.system.reading import read_bytes
from src.training.predictor import Classes, Inference, Predictor

Picture = str | Path | Image.Image | np.ndarray | Tensor


class ImagePredictor(Predictor[Picture | Sequence[Picture], Classes]):
    """Called with images it returns the probability of each class; they are cropped and resized as in an evaluation.

    An image is a path, a PIL image, or uint8 pixels of shape (height, width, 3); several are a sequence of them.

    Args:
        logits: of a batch of pixels on the device.
    """

    def __init__(
        self,
        network: nn.Module,
        logits: Callable[[UInt8[Tensor, "batch height width 3"]], Float[Tensor, "batch classes"]],
        datamodule: ImageDataModule,
        label_names: Sequence[str],
        device: torch.device,
        inference: Inference,
    ) -> None:
        super().__init__(device, inference)
        self.network, self.logits, self.datamodule, self.label_names = network, logits, datamodule, list(label_names)

    def predicted(self, inputs: Picture | Sequence[Picture]) -> Classes:
        is_one = isinstance(inputs, str | Path | Image.Image) or getattr(inputs, "ndim", 4) == 3
        images: list[Any] = [inputs] if is_one else list(inputs)  # type: ignore[arg-type]
        parts = [np.zeros((0, len(self.label_names)), np.float32)]
        for begin in range(0, len(images), self.inference.batch_size):
            chosen = enumerate(images[begin : begin + self.inference.batch_size], begin)
            pixels = np.stack([self.pixels(image, number) for number, image in chosen])
            parts.append(self.logits(torch.from_numpy(pixels).to(self.device)).float().softmax(1).cpu().numpy())
        return Classes(self.label_names, np.concatenate(parts))

    def pixels(self, image: Picture, number: int) -> UInt8[np.ndarray, "height width 3"]:
        """Returns one image as the network's evaluation sees it. Raises UserError where it is none."""
        if isinstance(image, str | Path):
            return self.datamodule.evaluated(read_bytes(Path(image), "give an image"), str(image))
        if isinstance(image, Image.Image):
            return self.datamodule.fitted(rgb_of(image, self.datamodule.rendering))
        array = image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
            raise UserError(
                f"image {number} has the shape {array.shape} of {array.dtype}; give a path, a PIL image or uint8 "
                "pixels of shape (height, width, 3)"
            )
        return self.datamodule.fitted(array)
