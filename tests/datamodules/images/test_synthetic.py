"""Synthetic images: equal for equal seeds, and learnable."""

from typing import Any

import pytest
import torch

from src.datamodules.images.synthetic import SyntheticImagesDataModule
from src.errors import UserError
from tests.support.batches import batches_of

SETTINGS: dict[str, Any] = {
    "name": "synthetic", "batch_size": 16, "seed": 1, "num_classes": 5, "image_size": 16, "steps_per_epoch": 7,
    "pool_batches": 3, "val_batches": 2,
}  # fmt: skip


def data(**options: Any) -> SyntheticImagesDataModule:
    module = SyntheticImagesDataModule(**SETTINGS | options)
    module.setup("fit")
    return module


def test_an_epoch_repeats_the_pool() -> None:
    batches = list(batches_of(data().train_dataloader()))
    assert len(batches) == 7
    assert [batch is batches[step % 3] for step, batch in enumerate(batches)] == [True] * 7
    assert len({id(batch) for batch in batches}) == 3


def test_images_are_bytes_and_repeat_with_their_seed() -> None:
    first, again, other = (data(data_seed=seed).loader("val").pool for seed in (1, 1, 2))
    assert first[0].pixels.shape == (16, 16, 16, 3) and first[0].pixels.dtype == torch.uint8
    assert first[0].pixels.is_contiguous()
    assert all(torch.equal(one.pixels, two.pixels) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0].pixels, other[0].pixels)
    assert not torch.equal(first[0].pixels, first[1].pixels)


def test_evaluation_images_differ_from_training_images() -> None:
    trained, evaluated = (data().loader(split).pool[0] for split in ("train", "val"))
    assert not torch.equal(trained.labels, evaluated.labels) and not torch.equal(trained.pixels, evaluated.pixels)


def test_an_image_shows_its_class() -> None:
    """The nearest of the classes' mean training images gives the class of every evaluation image."""
    pools = {split: data(batch_size=64).loader(split, batch_size=64).pool for split in ("train", "val")}
    pixels, labels = (torch.cat(parts) for parts in zip(*pools["train"], strict=True))
    means = torch.stack([pixels[labels == label].float().mean(0) for label in range(5)])
    for batch in pools["val"]:
        distance = (batch.pixels[:, None].float() - means).flatten(2).norm(dim=2)
        assert torch.equal(distance.argmin(1), batch.labels)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"datamodule\.predict=test: there is no such split; choose from train, val"):
        data(predict="test").predict_dataloader()
