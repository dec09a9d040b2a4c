"""The hash of a data set's content, by which a run that is resumed knows its data."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from src.system.reading import open_file, read_bytes

CONTENT = "content"  # the key of a fingerprint with the hash; the others are splits, with their numbers of samples
MOST_FILES = 1000  # of many whose content is read; the size of all is
BLOCKS, BLOCK_BYTES = 16, 2**16  # of a large file that are read, evenly spread; a smaller one is read whole
STATS = 1000  # files whose sizes a thread asks for at a time


def hash_of(parts: Iterable[Any]) -> str:
    """Returns the SHA-256 of arrays, bytes and plain values, in their order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode())
    return digest.hexdigest()


def of_many_files(folder: Path, names: Sequence[str], threads: int) -> str:
    """Returns a hash of the names and sizes of files, and of the content of MOST_FILES of them, evenly spread."""
    with ThreadPoolExecutor(threads) as executor:
        begins = range(0, len(names), STATS)
        sizes = executor.map(
            lambda begin: [os.stat(f"{folder}/{name}").st_size for name in names[begin : begin + STATS]], begins
        )
        parts: list[Any] = [list(names), *sizes]
        rows = np.linspace(0, len(names) - 1, min(len(names), MOST_FILES)).round()
        chosen = [folder / names[int(row)] for row in rows]
        contents = executor.map(lambda path: hashlib.sha256(read_bytes(path)).hexdigest(), chosen)
        return hash_of([*parts, *contents])


def of_large_files(folder: Path, names: Sequence[str]) -> str:
    """Returns a hash of the names and sizes of files, and of BLOCKS blocks of each."""
    parts: list[Any] = []
    for name in names:
        path = folder / name
        size = path.stat().st_size
        last = max(0, size - BLOCK_BYTES)
        whole = size <= BLOCKS * BLOCK_BYTES
        begins = range(0, size, BLOCK_BYTES) if whole else [last * i // (BLOCKS - 1) for i in range(BLOCKS)]
        parts += [name, size]
        with open_file(path) as file:
            for begin in begins:
                file.seek(begin)
                parts.append(file.read(BLOCK_BYTES))
    return hash_of(parts)
