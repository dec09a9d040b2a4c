"""Base of all image data: a training split and an evaluation split, as batches (`src.batches.images.ImageBatch`)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from src.config.ranges import Count, Seed
from src.datamodules.base import SplitDataModule
from src.datamodules.images.decode import Box, decode_whole, decoded, resized
from src.datamodules.images.rendering import AS_STORED, Pixels
from src.errors import UserError


class ImageDataModule(SplitDataModule):
    """Images with one evaluation split, `val`, as for ImageNet.

    After `setup`: `class_names` by label (None for unlabelled images), `splits` (the number of images of each split).

    Args:
        name, batch_size, seed, test_batch_size, predict: as for SplitDataModule; the seed is also of the random crops.
        num_classes: classes that the data must have.
        image_size: height and width of the images in a batch.
    """

    splits: dict[str, int]
    rendering = AS_STORED  # of files

    def __init__(
        self,
        name: str,
        batch_size: Count,
        seed: Seed,
        num_classes: Count,
        image_size: Count,
        test_batch_size: Count | None = None,
        predict: str = "val",
    ) -> None:
        super().__init__(name, batch_size, seed, predict, test_batch_size)
        self.num_classes, self.image_size = num_classes, image_size
        self.class_names: Sequence[str] | None = None

    def file_names(self, split: str) -> Sequence[str] | None:
        """Returns the names of a split's images, in order; None if they have no names."""
        return None

    def unreadable_rows(self, split: str) -> list[int]:
        """Returns the rows of a split that could not be decoded so far."""
        return []

    def evaluated(self, data: bytes, name: str) -> UInt8[np.ndarray, "size size 3"]:
        """Returns an image file's pixels as an evaluation has them. Raises UserError for one that cannot be decoded."""
        return decoded(name, lambda: self.fitted(decode_whole(data, self.rendering)))

    def fitted(self, pixels: Pixels) -> UInt8[np.ndarray, "size size 3"]:
        """Returns pixels as an evaluation has them: the whole image."""
        return resized(pixels, Box(0, 0, pixels.shape[1], pixels.shape[0]), self.image_size)

    def check_classes(self, names: Sequence[str], where: object) -> None:
        """Raises UserError unless there are `num_classes`."""
        if len(names) != self.num_classes:
            raise UserError(
                f"{where} has {len(names)} classes, {self.num_classes} are expected: give "
                f"datamodule.num_classes={len(names)}"
            )
