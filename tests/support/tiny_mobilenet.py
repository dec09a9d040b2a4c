"""Configs of MobileNetV1 runs that take a second: a narrow network on small synthetic images or image folders."""

import io
from pathlib import Path

import numpy as np
from omegaconf import DictConfig
from PIL import Image

from tests.support.composing import composed

CLASSES = ("ape", "bee", "cow")
STRIDES = "[2,1,1,1,2,1,2,1,1,1,1,1,1,1]"
SYNTHETIC = (
    "datamodule=image_synthetic", "datamodule.num_classes=6", "datamodule.image_size=32",
    "datamodule.steps_per_epoch=8", "datamodule.pool_batches=8", "datamodule.val_batches=3",
)  # fmt: skip


def tiny_overrides(home: Path, data: tuple[str, ...] = SYNTHETIC) -> list[str]:
    """Returns the overrides of a run with 8 steps of 8 images an epoch, which writes to `home`/run."""
    return [
        "model=mobilenet_v1", *data, "precision=fp32", "hardware=cpu", "logger=none", "~callbacks.progress",
        "model.task.network.width_multiplier=0.125", f"model.task.network.strides={STRIDES}", "hp.batch_size=8",
        "hp.lr=0.05", "fit.max_epochs=1", "measure.window=2", "measure.warmup_steps=2",
        "pictures=false", f"data_root={home / 'data'}",
        f"output_root={home / 'outputs'}", f"output_dir={home / 'run'}",
    ]  # fmt: skip


def tiny_mobilenet(home: Path, *overrides: str, data: tuple[str, ...] = SYNTHETIC) -> DictConfig:
    """Composes the config of `tiny_overrides`, then `overrides`."""
    return composed("train", *tiny_overrides(home, data), *overrides)


def tiny_prediction(home: Path, *overrides: str) -> list[str]:
    """Returns the overrides of a prediction in batches of 4 that writes to `home`/predicted."""
    mine = [
        "model=mobilenet_v1", "precision=fp32", "hardware=cpu", "batch_size=4", f"data_root={home / 'data'}",
        f"output_root={home / 'outputs'}", f"output_dir={home / 'predicted'}",
    ]  # fmt: skip
    return [*mine, *overrides]


def picture(height: int, width: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Returns an image of smooth colours, which JPEG nearly preserves."""
    grid = np.random.default_rng(seed).integers(0, 256, (4, 4, len(Image.new(mode, (1, 1)).getbands())), np.uint8)
    small = Image.fromarray(grid.squeeze(-1) if grid.shape[-1] == 1 else grid, mode if mode != "RGBA" else None)
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    """Returns the bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


def write_folders(home: Path, train: int = 12, val: int = 5) -> tuple[str, ...]:
    """Writes `train` and `val` images of each class; returns the overrides of a run on them."""
    for split, number in (("train", train), ("val", val)):
        for label, name in enumerate(CLASSES):
            folder = home / "images" / split / name
            folder.mkdir(parents=True)
            for row in range(number):
                seed = 1000 * label + 10 * row + (split == "val")
                (folder / f"{row:03}.JPEG").write_bytes(encoded(picture(40 + row, 48, seed)))
    return overrides_of(home)


def overrides_of(home: Path) -> tuple[str, ...]:
    """Returns the overrides of a run on the images that `write_folders` wrote to `home`."""
    return (
        "datamodule=image_folder", f"datamodule.data_dir={home / 'images'}", "datamodule.num_classes=3",
        "datamodule.image_size=32", "datamodule.threads=2",
    )  # fmt: skip
