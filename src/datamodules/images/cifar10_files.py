"""Reads CIFAR-10 in all its forms: the official binary and Python files, and folders of images.

Each of them as a folder or as a tar archive of any compression. Files are recognised by their names, so that enclosing
folders do not matter.
"""

import bz2
import gzip
import io
import lzma
import os
import pickle
import pickletools
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from src.datamodules.images.decode import decode_whole
from src.errors import UserError
from src.system.progress import working
from src.system.reading import open_file, read_bytes

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 32
MOST_BYTES = 2**30  # of a file: all 60,000 images are 184 MB
COMPRESSIONS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file), b"BZh": bz2.BZ2File, b"\xfd7zXZ": lzma.LZMAFile,
    b"\x5d\0\0": lzma.LZMAFile,
}  # fmt: skip
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
RECORD = 1 + 3 * SIZE**2  # bytes of an image in the binary files: its label, then the red, green and blue planes


class Labelled(NamedTuple):
    """Images and their labels."""

    pixels: UInt8[np.ndarray, "images 32 32 3"]
    labels: Int64[np.ndarray, " images"]


def read_cifar10(source: Path) -> dict[str, Labelled]:
    """Returns the splits `train` and `test` of a folder or archive, in the order of the files' names.

    Raises UserError that names a file that is damaged or not CIFAR-10's.
    """
    splits: dict[str, list[tuple[str, Labelled]]] = {"train": [], "test": []}
    with working(f"reading {source}"):
        for split, name, data in files_of(source):
            splits[split].append((name, read_file(f"{source}: {name}", PurePosixPath(name), data)))
    for split, parts in splits.items():
        if not parts:
            raise UserError(
                f"{source} has no {split} images of CIFAR-10: give the official archive or folder, or one of images as "
                f"{split}/airplane/1.jpg"
            )
    return {split: joined(parts) for split, parts in splits.items()}


def files_of(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yields split, name and bytes of each file of CIFAR-10 in a folder or tar archive; others are not read.

    Raises UserError if the source is neither, and for a file that is too large to be one.
    """
    if source.is_dir():
        for parent, _, names in os.walk(source):
            for name in names:
                file = Path(parent) / name
                if (split := split_of(file.relative_to(source).as_posix())) is not None:
                    yield split, file.relative_to(source).as_posix(), read_bytes(file, most=MOST_BYTES)
        return
    try:
        with open_tar(source) as archive:
            for member in archive:
                if not member.isfile() or (split := split_of(member.name)) is None:
                    continue
                if member.size > MOST_BYTES:
                    raise UserError(f"{source}: {member.name} has {member.size:,} bytes, too many for a CIFAR-10 file")
                if (file := archive.extractfile(member)) is not None:
                    yield split, member.name, file.read()
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UserError(f"{source} cannot be read as a folder or tar archive ({error}): give another source") from error


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Yields a tar archive of any compression that reads MOST_BYTES at once at most, headers too."""
    with open_file(path, "give an archive or folder of CIFAR-10") as file:
        start = file.read(6)
        file.seek(0)
        opened = next((kind(file) for magic, kind in COMPRESSIONS.items() if start.startswith(magic)), file)
        with opened, tarfile.TarFile(fileobj=BoundedReads(opened)) as archive:  # pyright: ignore[reportArgumentType]
            yield archive


class BoundedReads:
    """An open file that refuses to read more than MOST_BYTES at once: a header could ask for all memory."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_BYTES:
            raise tarfile.ReadError(f"a header or file of {size:,} bytes")
        return self._file.read(size)


def split_of(name: str) -> str | None:
    """Returns the split whose images a file of that name holds; None for other files."""
    path = PurePosixPath(name)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        folder = path.parts[-3] if len(path.parts) > 2 else ""
        return folder if folder in ("train", "test") else None
    if path.suffix not in ("", ".bin"):
        return None
    return {"data_batch": "train", "test_batch": "test"}.get(path.stem.rstrip("_0123456789"))


def read_file(where: str, path: PurePosixPath, data: bytes) -> Labelled:
    """Returns the images in a file. Raises UserError, with the name `where`, for a damaged one."""
    try:
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return one_image(path.parts[-2], decode_whole(data))
        return checked(from_binary(data) if path.suffix == ".bin" else from_pickle(data))
    except Exception as error:  # of an unpickler and decoders at any damage
        reason = " ".join(str(error).split())
        raise UserError(f"{where} is not a valid CIFAR-10 file ({reason}): get the file again") from error


def one_image(name: str, pixels: UInt8[np.ndarray, "height width 3"]) -> Labelled:
    """Returns one image of the class `name`. Raises ValueError for an unknown class or another size."""
    if name not in CLASSES:
        raise ValueError(f"there is no class {name}")
    if pixels.shape != (SIZE, SIZE, 3):
        raise ValueError(f"{pixels.shape[1]} x {pixels.shape[0]} pixels instead of {SIZE} x {SIZE}")
    return Labelled(pixels[None], np.array([CLASSES.index(name)]))


def from_binary(data: bytes) -> Labelled:
    """Returns the images of an official binary file. Raises ValueError if the last record is truncated."""
    if len(data) % RECORD or not data:
        raise ValueError(f"{len(data)} bytes are not a multiple of {RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    return from_planes(records[:, 1:], records[:, 0])


def from_pickle(data: bytes) -> Labelled:
    """Returns the images of an official Python file.

    Raises UnpicklingError for anything but plain arrays, KeyError or ValueError for other contents.
    """
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(data):
            raise pickle.UnpicklingError(f"it numbers a value {argument:,}")  # memory for as many would be taken
    content = PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    return from_planes(content[b"data"], np.asarray(content[b"labels"]))


def from_planes(planes: UInt8[np.ndarray, "images bytes"], labels: np.ndarray) -> Labelled:
    if planes.dtype != np.uint8 or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(f"pixels of {planes.dtype} and labels of {labels.dtype} instead of bytes and integers")
    pixels = planes.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)
    return Labelled(np.ascontiguousarray(pixels), labels.astype(np.int64))


def checked(images: Labelled) -> Labelled:
    """Returns the images. Raises ValueError for a label out of range, and if labels and images differ in number."""
    if len(images.labels) != len(images.pixels):
        raise ValueError(f"{len(images.labels)} labels for {len(images.pixels)} images")
    if images.labels.min() < 0 or images.labels.max() >= len(CLASSES):
        raise ValueError(f"a label outside 0 .. {len(CLASSES) - 1}")
    return images


def joined(parts: list[tuple[str, Labelled]]) -> Labelled:
    ordered = [images for _, images in sorted(parts, key=lambda part: part[0])]
    return Labelled(
        np.concatenate([images.pixels for images in ordered]), np.concatenate([images.labels for images in ordered])
    )


class PlainUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays and Python's own types only, since a pickle can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("_core", "core"), name) == ("numpy.core.multiarray", "_reconstruct"):
            return lambda *_: np.ndarray(0)  # which then gets its shape together with its bytes
        if (module, name) == ("numpy", "ndarray"):
            return None  # an argument of the one above, and not to be called
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        raise pickle.UnpicklingError(f"it would call {module}.{name}")
