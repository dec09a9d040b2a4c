"""Which files of images can be read, and what each becomes: by their headers and ends, or by decoding every one."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import numpy as np
from PIL import Image

from src.datamodules.images.decode import decode_whole, reason_of
from src.datamodules.images.rendering import (
    DEEP_MODES,
    MOST_16,
    Rendering,
    UnknownRangeError,
    changes_of,
    lossless_kind,
)
from src.errors import UserError
from src.system.reading import open_file, read_bytes

Check = Literal["headers", "all"]
Item = TypeVar("Item")
Result = TypeVar("Result")
UNDECODABLE = "cannot be decoded"
NO_RANGE = "pixel values whose black and white are not known"
TAIL = 4096  # bytes at the end of a file, in which its end marker is looked for
MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
MOST_HEADERS = 50_000  # files whose headers are read, evenly spread
SAMPLE_16 = 16  # files with 16-bit grey whose values are read
DARK = 4096  # levels of 16-bit grey below which all of the sample lie, as from a 12-bit camera
MOST_HASHED = 2**31  # bytes of files of equal size that are compared
FILES = 64  # that a thread takes at a time


@dataclass(frozen=True)
class Verdict:
    """What becomes of one file: how it is changed, or why it cannot be read."""

    changes: list[str] = field(default_factory=list)
    kind: str | None = None  # grey, black and white, or with a palette, which become RGB without a loss
    is_16_bit: bool = False
    problem: str | None = None
    why: str = UNDECODABLE  # in general words


def verdicts(paths: Sequence[Path], rendering: Rendering, check: Check, threads: int) -> dict[int, Verdict]:
    """Returns the verdict on each file by its number; with `headers` on MOST_HEADERS of them at most."""
    numbers = range(len(paths))
    if check == "headers" and len(paths) > MOST_HEADERS:
        numbers = np.unique(np.linspace(0, len(paths) - 1, MOST_HEADERS).round().astype(int)).tolist()
    results = in_threads(lambda number: verdict(paths[number], rendering, check == "all"), numbers, threads)
    return dict(zip(numbers, results, strict=True))


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Returns the results of a function, in the order of the items."""
    parts = [items[begin : begin + FILES] for begin in range(0, len(items), FILES)]
    with ThreadPoolExecutor(threads, "image-check") as executor:
        done = executor.map(lambda part: [function(item) for item in part], parts)
        return [result for part in done for result in part]


def verdict(path: Path, rendering: Rendering, is_decoded: bool) -> Verdict:
    """Returns what becomes of a file. Raises MemoryError alone."""
    try:
        with open_file(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size = os.fstat(file.fileno()).st_size
            if not size:
                return Verdict(problem="an empty file")
            with Image.open(file) as image:
                changes, kind = changes_of(image, rendering), lossless_kind(image)
                is_16_bit = image.mode.startswith("I;16")
                if is_decoded or image.mode in DEEP_MODES or not has_end(image, file, size):
                    decode_whole(read_bytes(path), rendering)
        return Verdict(changes, kind, is_16_bit)
    except MemoryError:
        raise
    except UserError as error:  # of the file system; the reason stands between the brackets
        return Verdict(problem=str(error).partition("(")[2].partition(")")[0] or str(error))
    except UnknownRangeError as error:
        return Verdict(problem=str(error), why=NO_RANGE)
    except Exception as error:  # Pillow's decoders raise nearly anything for damaged bytes
        return Verdict(problem=reason_of(error))


def has_end(image: Image.Image, file: BinaryIO, size: int) -> bool:
    """Returns whether an open file has its format's end marker, or the length that it says; False for others."""
    if image.format == "WEBP":
        file.seek(4)
        return int.from_bytes(file.read(4), "little") + 8 <= size
    file.seek(max(0, size - TAIL))
    tail = file.read(TAIL)
    if image.format == "GIF":
        return tail.rstrip(b"\0").endswith(b";")
    return image.format in MARKERS and MARKERS[image.format] in tail


def range_note(paths: Sequence[Path], rendering: Rendering) -> str | None:
    """Returns a note where 16-bit grey images use the darkest sixteenth of the values that are possible."""
    if not paths or rendering.value_range is not None:
        return None
    most = 0
    for number in np.unique(np.linspace(0, len(paths) - 1, SAMPLE_16).round().astype(int)).tolist():
        try:
            with open_file(paths[number]) as file, Image.open(file) as image:
                most = max(most, int(np.asarray(image).max()))
        except Exception:  # it is replaced when it is read
            continue
    if not 0 < most < DARK:
        return None
    return (
        f"the brightest pixel of {min(len(paths), SAMPLE_16)} 16-bit images is {most:,} of {MOST_16:,}, nearly black; "
        f"if it is meant to be white give datamodule.value_range=[0,{most}]"
    )


def contents(paths: Sequence[Path], threads: int) -> list[str] | None:
    """Returns a key of each file, equal for files of equal bytes; None if too many bytes would have to be compared.

    Files whose size no other has are not read.
    """
    sizes = in_threads(size_of, paths, threads)
    counts = Counter(sizes)
    same_size = [number for number, size in enumerate(sizes) if counts[size] > 1 and size >= 0]
    if sum(sizes[number] for number in same_size) > MOST_HASHED:
        return None
    keys = [f"{size} {number}" for number, size in enumerate(sizes)]
    digests = in_threads(lambda number: content(paths[number]), same_size, threads)
    for number, digest in zip(same_size, digests, strict=True):
        keys[number] = digest
    return keys


def size_of(path: Path) -> int:
    """Returns the bytes of a file; -1 where it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def content(path: Path) -> str:
    """Returns the SHA-256 of a file, or its name where it cannot be read."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except UserError:
        return str(path)
