"""Synthetic images generated on the training device: they measure throughput without files and decoding.

Each class is a pattern of 4 x 4 colours; an image is its class's pattern plus noise, so that a network can learn it.
"""

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from src.batches.images import ImageBatch
from src.config.ranges import Count, Seed
from src.datamodules.images.base import ImageDataModule
from src.datamodules.resident import PoolLoader

PATTERN = 4  # colours across and down
NOISE = 64.0  # standard deviation in steps of 1/255


class SyntheticImagesDataModule(ImageDataModule):
    """Batches from a pool that each rank generates with its own random numbers.

    Args:
        steps_per_epoch: optimiser steps in an epoch.
        pool_batches: different training batches of each rank.
        val_batches: evaluation batches of each rank, all different.
        data_seed: of the patterns and the images.
        options: as for ImageDataModule.
    """

    def __init__(
        self, *, steps_per_epoch: Count, pool_batches: Count, val_batches: Count, data_seed: Seed = 0, **options: Any
    ) -> None:
        super().__init__(**options)
        self.steps_per_epoch, self.data_seed = steps_per_epoch, data_seed
        self.num_batches = {"train": pool_batches, "val": val_batches}
        self._pools: dict[tuple[str, int], list[ImageBatch]] = {}

    def setup(self, stage: str) -> None:
        _, world = self.rank_and_world
        self.class_names = [f"class_{number}" for number in range(self.num_classes)]
        self.splits = {
            "train": self.steps_per_epoch * self.accumulate * self.batch_size * world,
            "val": self.num_batches["val"] * self.test_batch_size * world,
        }

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> PoolLoader[ImageBatch]:
        self.check_split(split)
        size = batch_size or self.test_batch_size
        if (split, size) not in self._pools:
            self._pools[split, size] = self._generate(split, size)
        pool = self._pools[split, size]
        return PoolLoader(pool, self.steps_per_epoch * self.accumulate if train else len(pool), size)

    def _generate(self, split: str, size: int) -> list[ImageBatch]:
        device, (rank, _) = self.target_device, self.rank_and_world
        shape = self.num_classes, 3, PATTERN, PATTERN
        patterns = 255 * torch.rand(shape, generator=torch.Generator().manual_seed(self.data_seed)).to(device)
        generator = torch.Generator(device).manual_seed((self.data_seed << 20) + 2 * rank + (split == "val"))
        pool = []
        for _ in range(self.num_batches[split]):
            labels = torch.randint(self.num_classes, (size,), generator=generator, device=device)
            pool.append(self._images(patterns, labels, generator))
        return pool

    def _images(
        self,
        patterns: Float[Tensor, "classes 3 down across"],
        labels: Int64[Tensor, " batch"],
        generator: torch.Generator,
    ) -> ImageBatch:
        large = F.interpolate(patterns[labels], (self.image_size, self.image_size)).permute(0, 2, 3, 1)
        noise = torch.randn(large.shape, generator=generator, device=large.device)
        # The sum has the memory order of `large`, colours first.
        return ImageBatch((large + NOISE * noise).clamp(0, 255).byte().contiguous(), labels)
