"""Base of all image data: a training split and an evaluation split, as batches (`src.batches.images.ImageBatch`)."""

from collections.abc import Sequence

from src.config.ranges import Count, Seed
from src.datamodules.base import SplitDataModule
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

    def check_classes(self, names: Sequence[str], where: object) -> None:
        """Raises UserError unless there are `num_classes`."""
        if len(names) != self.num_classes:
            raise UserError(
                f"{where} has {len(names)} classes, {self.num_classes} are expected: give "
                f"datamodule.num_classes={len(names)}"
            )
