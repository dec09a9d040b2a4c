"""Folders of image files: ImageNet's layout (train/CLASS/FILE, val/CLASS/FILE), and files without classes."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from src.batches.images import UNKNOWN
from src.config.ranges import Count
from src.datamodules.base import PUBLISHED
from src.datamodules.fingerprint import CONTENT, hash_of, of_many_files
from src.datamodules.images.base import ImageDataModule
from src.datamodules.images.loader import DecodingLoader, ImageFiles
from src.errors import UserError
from src.printable import printable
from src.system.workers import cpu_count

SHOWN = 10  # classes named in a report
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def classes_in(folder: Path) -> list[str]:
    """Returns the names of the class folders, sorted. Raises UserError if there is none."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"cannot read {folder} ({error.strerror}): give a folder with one folder a class") from error
    if not names:
        raise UserError(
            f"{folder} has no class folders: give a folder with one folder a class, such as train/dog/1.jpg"
        )
    return names


def images_in(folder: Path) -> list[str]:
    """Returns the names of the image files directly in a folder, sorted."""
    return sorted(
        e.name for e in os.scandir(folder) if e.name.lower().endswith(SUFFIXES) and not e.name.startswith(".")
    )


def others_in(folder: Path) -> list[str]:
    """Returns the names of visible files directly in a folder that are no images, sorted."""
    visible = (entry for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    return sorted(entry.name for entry in visible if not entry.name.lower().endswith(SUFFIXES))


def labelled(folder: Path, classes: Sequence[str]) -> ImageFiles:
    """Returns all images of the class folders. Raises UserError for a class folder without images."""
    files: list[str] = []
    counts = []
    for name in classes:
        images = images_in(folder / name)
        if not images:
            raise UserError(f"{folder / name} has no image: add images, or remove the folder")
        files += [f"{name}/{file}" for file in images]
        counts.append(len(images))
    return ImageFiles(folder, files, np.repeat(np.arange(len(classes)), counts))


def unlabelled(folder: Path) -> ImageFiles:
    """Returns all images in a folder and its subfolders. Raises UserError if there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give a folder of images")
    files: list[str] = []
    for parent, folders, _ in os.walk(folder):
        folders.sort()
        files += [str((Path(parent) / name).relative_to(folder)) for name in images_in(Path(parent))]
    if not files:
        raise UserError(f"{folder} has no image ({' '.join(SUFFIXES)}): give a folder of images")
    return ImageFiles(folder, files, np.full(len(files), UNKNOWN))


class _DecodedDataModule(ImageDataModule):
    """Images that threads decode from files during training.

    Args:
        data_dir: the folder.
        threads: decoding threads; the machine's cores divided by its ranks if not given.
        prefetch: batches decoded ahead.
        options: as for ImageDataModule.
    """

    def __init__(self, *, data_dir: str, threads: Count | None = None, prefetch: Count = 4, **options: Any) -> None:
        super().__init__(**options)
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.threads = max(1, cpu_count() // ranks_here) if threads is None else threads
        self.data_dir, self.prefetch = Path(data_dir), prefetch
        self.files: dict[str, ImageFiles] = {}

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> DecodingLoader:
        self.check_split(split)
        return DecodingLoader(
            self.files[split],
            batch_size or self.test_batch_size,
            size=self.image_size,
            train=train,
            threads=self.threads,
            prefetch=self.prefetch,
            device=self.target_device,
            clock=self.clock,
            **self.order,
        )

    def file_names(self, split: str) -> Sequence[str]:
        return self.files[split].files


class ImageFolderDataModule(_DecodedDataModule):
    """One folder a class in `train` and in `val`; the folders have the names of the classes.

    Args:
        train, val: folders in `data_dir`; the Paddle harness gives the same one for both.
        options: `data_dir`, `threads` and `prefetch`, and as for ImageDataModule.
    """

    def __init__(self, *, train: str = "train", val: str = "val", **options: Any) -> None:
        super().__init__(**options)
        self.folders = {"train": train, "val": val}

    def prepare_data(self) -> None:
        self.setup("prepare")

    def setup(self, stage: str) -> None:
        """Lists the files. Raises UserError for missing or empty folders, and if the splits' classes differ."""
        if self.files:
            return
        names = {split: classes_in(self.data_dir / folder) for split, folder in self.folders.items()}
        unshared = sorted(set(names["train"]) ^ set(names["val"]))
        if unshared:
            having, lacking = (
                self.data_dir / self.folders[s] for s in sorted(names, key=lambda s: unshared[0] not in names[s])
            )
            raise UserError(
                f"{having / unshared[0]} is a class that {lacking} does not have: both need the same class folders"
            )
        self.check_classes(names["train"], self.data_dir / self.folders["train"])
        self.files = {split: labelled(self.data_dir / folder, names[split]) for split, folder in self.folders.items()}
        self.splits = {split: len(images.files) for split, images in self.files.items()}
        self.class_names = names["train"]
        if self.name not in PUBLISHED and self.rank_and_world[0] == 0:
            print(printable(self.report()), flush=True)

    def fingerprint(self) -> dict[str, Any]:
        parts = [of_many_files(images.folder, images.files, self.threads) for images in self.files.values()]
        return dict(self.splits) | {CONTENT: hash_of(parts)}

    def report(self) -> str:
        """Returns what was found and what was left out: images of each class, files that are none."""
        assert self.class_names is not None
        counts = Counter(np.concatenate([images.labels for images in self.files.values()]).tolist())
        named = [f"{name} {counts[label]:,}" for label, name in enumerate(self.class_names[:SHOWN])]
        more = len(self.class_names) - len(named)
        classes = f"{len(self.class_names)} classes: {', '.join(named)}{f' and {more} more' * bool(more)}"
        others = [
            f"{folder}/{name}/{file}"
            for folder in dict.fromkeys(self.folders.values())
            for name in self.class_names
            for file in others_in(self.data_dir / folder / name)
        ]
        train, val = (f"{self.splits[split]:,}" for split in ("train", "val"))
        lines = [f"{self.data_dir}: {train} images to train, {val} to evaluate; {classes}"]
        if others:
            lines.append(f"left out {len(others):,} files that are no images ({' '.join(SUFFIXES)}), as {others[0]}")
        return "\n".join(lines)


class ImageFilesDataModule(_DecodedDataModule):
    """Unlabelled images in a folder and its subfolders, for prediction."""

    def prepare_data(self) -> None:
        self.setup("prepare")

    def setup(self, stage: str) -> None:
        if stage == "fit":
            raise UserError("datamodule=image_files has no labels to train on; give datamodule=image_folder")
        self.files = self.files or {"all": unlabelled(self.data_dir)}
        self.splits = {"all": len(self.files["all"].files)}
