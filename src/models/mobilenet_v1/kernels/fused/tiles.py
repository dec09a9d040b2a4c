"""How work is cut into programs: sizes of blocks by shape, by rules that benchmarks/mobilenet_tiles.py can check."""

from typing import NamedTuple

import torch

from src.models.kernels import power_of_2

PROGRAMS = 4 * 132  # that go over rows, more or less: four on each multiprocessor of an H200


class Tile(NamedTuple):
    """A block of a product, rows by columns, and how much of what is summed over is loaded at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Strips(NamedTuple):
    """What a program of a depthwise layer owns at a time: strips of columns, of some channels; see strips_triton."""

    columns: int
    strips: int
    channels: int
    warps: int
    programs: int  # at most so many, where images need not be cut into segments of less than a row


def strips_of(kernel: str, stride: int, across: int, channels: int, dtype: torch.dtype) -> Strips:
    """For `across` output columns: a thread has 4 bytes of channels of a strip, or less where there are fewer."""
    columns = 7 if across % 7 == 0 or across > 8 else min(across, 4)
    lanes = 4 * 32 * 4 // dtype.itemsize
    strips = min(power_of_2(-(-across // columns)), lanes // 32)
    block = block_of(channels, lanes // strips)
    return Strips(columns, strips, block, max(1, strips * block * dtype.itemsize // 128), PROGRAMS)


def tiles_each(length: int, block: int, wanted: int) -> int:
    """Blocks of `length` that a program goes over, so that there are at most `wanted` programs."""
    return -(-length // (block * max(1, wanted)))


def programs_for(length: int, block: int, each: int) -> int:
    return -(-length // (block * each))


def block_of(size: int, most: int) -> int:
    """The smallest block that holds `size`, between 16, which products need, and `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
