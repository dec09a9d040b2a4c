"""How work is cut into programs: sizes of blocks by shape, by rules that benchmarks/mobilenet_tiles.py can check."""

from typing import NamedTuple

PROGRAMS = 4 * 132  # that go over rows, more or less: four on each multiprocessor of an H200


class Tile(NamedTuple):
    """A block of a product, rows by columns, and how much of what is summed over is loaded at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tiles_each(length: int, block: int, wanted: int) -> int:
    """Blocks of `length` that a program goes over, so that there are at most `wanted` programs."""
    return -(-length // (block * max(1, wanted)))


def programs_for(length: int, block: int, each: int) -> int:
    return -(-length // (block * each))


def block_of(size: int, most: int) -> int:
    """The smallest block that holds `size`, between 16, which products need, and `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
