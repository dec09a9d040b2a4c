"""The image files in folders: one folder a class, or any folders without classes."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from src.batches.images import UNKNOWN
from src.config.schema import NO_CLASSES
from src.datamodules.images.loader import ImageFiles
from src.errors import UserError

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".bmp", ".dib", ".gif", ".tif", ".tiff",
    ".jp2", ".tga", ".ppm", ".pgm", ".pbm", ".pnm",
)  # fmt: skip
UNREAD = {".heic": "HEIC, which is not read: save it as JPEG", ".heif": "HEIF, which is not read: save it as JPEG"}
NOT_AN_IMAGE = "no image by the end of its name"


def is_ignored(name: str) -> bool:
    """Returns whether a file or folder is left out without a word: hidden ones, and what no person made."""
    return name.startswith(".") or name in NO_CLASSES


def classes_in(folder: Path) -> list[str]:
    """Returns the names of the class folders, sorted. Raises UserError if there is none."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not is_ignored(entry.name))
    except OSError as error:
        raise UserError(
            f"cannot read {folder} ({error.strerror}): give a folder with one folder a class; datamodule.data_dir="
            "FOLDER names the folder above it, datamodule.train=. is for class folders that lie directly in that one"
        ) from error
    if not names:
        raise UserError(
            f"{folder} has no class folders: give a folder with one folder a class, such as train/dog/1.jpg"
        )
    return names


def files_below(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the visible files in a folder and its subfolders: images by their names, and others.

    They are sorted in each folder, and come before those of its subfolders. Subfolders that are links are not entered,
    and are among the others.
    """
    images: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        here = os.path.relpath(parent, folder)
        prefix = "" if here == "." else f"{here}/"
        for name in sorted(name for name in names if not is_ignored(name)):
            (images if name.lower().endswith(SUFFIXES) else others).append(prefix + name)
        others += [prefix + name for name in folders if os.path.islink(f"{parent}/{name}")]
    return images, others


def labelled(folder: Path, classes: Sequence[str]) -> tuple[ImageFiles, list[str]]:
    """Returns all images of the class folders, and the files that are none.

    Raises UserError for a class folder without images.
    """
    files: list[str] = []
    others: list[str] = []
    counts = []
    for name in classes:
        images, rest = files_below(folder / name)
        if not images:
            raise UserError(f"{folder / name} has no image: add images, or remove the folder")
        files += [f"{name}/{file}" for file in images]
        others += [f"{name}/{file}" for file in rest]
        counts.append(len(images))
    return ImageFiles(folder, files, np.repeat(np.arange(len(classes)), counts)), others


def unlabelled(folder: Path) -> tuple[ImageFiles, list[str]]:
    """Returns all images in a folder and its subfolders, and the files that are none. Raises UserError for no image."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give a folder of images with datamodule.data_dir=FOLDER")
    files, others = files_below(folder)
    if not files:
        raise UserError(
            f"{folder} has no image ({' '.join(SUFFIXES)}): give a folder of images with datamodule.data_dir=FOLDER"
        )
    return ImageFiles(folder, files, np.full(len(files), UNKNOWN)), others


def why_no_image(name: str) -> str:
    """Returns why a file is left out by its name."""
    return UNREAD.get(Path(name).suffix.lower(), NOT_AN_IMAGE)
