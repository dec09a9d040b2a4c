"""CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 in ten classes, kept on the training device."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.batches.images import ImageBatch
from src.datamodules.download import from_url, sha256_of
from src.datamodules.fingerprint import CONTENT, hash_of
from src.datamodules.images.base import ImageDataModule
from src.datamodules.images.cifar10_files import CLASSES, SIZE, Labelled, read_cifar10
from src.datamodules.prepared import prepare, verified_meta
from src.datamodules.resident import ResidentLoader
from src.errors import UserError
from src.system.reading import read_npy

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
LAYOUT = 1  # of the prepared arrays
SPLIT_OF = {"train": "train", "val": "test"}  # our split to CIFAR-10's


class ResidentImages(ResidentLoader):
    """Batches of images gathered on the device."""

    def batch(self, step: int) -> ImageBatch:
        return ImageBatch(*super().batch(step))


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10 from its official archive or another form of it (see cifar10_files.py), prepared once.

    Args:
        data_dir: folder of the prepared arrays and the download.
        source: an archive or folder to prepare from; the official archive is downloaded if not given.
        options: as for ImageDataModule.
    """

    def __init__(self, *, data_dir: str, source: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if self.image_size != SIZE:
            raise UserError(f"datamodule.image_size={self.image_size}: CIFAR-10's images have {SIZE} x {SIZE} pixels")
        self.data_dir, self.source = Path(data_dir), None if source is None else Path(source)
        self.tensors: dict[str, tuple[Tensor, ...]] = {}

    @property
    def prepared(self) -> Path:
        return self.data_dir / "prepared"

    def prepare_data(self) -> None:
        """Prepares the arrays. Raises UserError if the source is not CIFAR-10, or not the one prepared before."""
        if self.source is not None:
            if not self.source.exists():
                raise UserError(
                    f"datamodule.source={self.source} does not exist; give an archive or folder of CIFAR-10"
                )
            source = self.source
            prepare(self.prepared, origin_of(source), lambda folder: write_arrays(folder, read_cifar10(source)))
        elif not self.prepared.exists():
            archive = from_url(URL, SHA256, self.data_dir / Path(URL).name)
            prepare(self.prepared, origin_of(archive), lambda folder: write_arrays(folder, read_cifar10(archive)))

    def fingerprint(self) -> dict[str, Any]:
        meta = verified_meta(self.prepared)
        counts = {split: meta[f"{source}_images"] for split, source in SPLIT_OF.items()}
        return counts | {CONTENT: hash_of([meta["sha256"]])}

    def setup(self, stage: str) -> None:
        if self.tensors:
            return
        verified_meta(self.prepared)
        device = self.target_device
        for split, cifar_split in SPLIT_OF.items():
            arrays = [read_npy(self.prepared / f"{cifar_split}_{part}.npy") for part in Labelled._fields]
            self.tensors[split] = tuple(torch.from_numpy(array).to(device) for array in arrays)
        self.splits = {split: len(labels) for split, (_, labels) in self.tensors.items()}
        self.check_classes(CLASSES, "CIFAR-10")
        self.class_names = CLASSES

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> ResidentImages:
        self.check_split(split)
        index = torch.arange(self.splits[split])
        size = batch_size or self.test_batch_size
        return ResidentImages(self.tensors[split], index, size, shuffle=train, drop_last=train, **self.order)


def origin_of(source: Path) -> dict[str, Any]:
    """Identifies a source: its name, and an archive's checksum or the number and size of a folder's files."""
    if source.is_file():
        return {"layout": LAYOUT, "source": source.name, "source_sha256": sha256_of(source)}
    sizes = [file.stat().st_size for file in source.rglob("*") if file.is_file()]
    return {"layout": LAYOUT, "source": source.name, "source_files": len(sizes), "source_bytes": sum(sizes)}


def write_arrays(folder: Path, splits: dict[str, Labelled]) -> dict[str, Any]:
    """Writes each split's arrays; returns the number of images of each split."""
    for split, images in splits.items():
        for part, array in images._asdict().items():
            np.save(folder / f"{split}_{part}.npy", array)
    return {f"{split}_images": len(images.labels) for split, images in splits.items()}
