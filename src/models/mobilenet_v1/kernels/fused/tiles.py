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
    registers: int | None  # of a thread at most: so that more programs run at a time
    programs: int  # at most so many in all, if there are fewer images: those are cut into segments of rows


# What was measured to be better than the rule below, by kernel, stride, output columns, channels and bytes of a number.
STRIPS: dict[tuple[str, int, int, int, int], Strips] = {}


def strips_of(kernel: str, stride: int, across: int, channels: int, dtype: torch.dtype) -> Strips:
    """For `across` output columns: a thread has 4 bytes of channels of a strip, or less where there are fewer."""
    found = STRIPS.get((kernel, stride, across, channels, dtype.itemsize))
    return found or strips_by_rule(kernel, stride, across, channels, dtype.itemsize)


def strips_by_rule(
    kernel: str, stride: int, across: int, channels: int, size: int, columns: int = 7, warps: int = 4
) -> Strips:
    """Of strips of at most so many columns; `size` in bytes."""
    lanes, columns = warps * 32 * 4 // size, min(across, columns)
    strips = min(power_of_2(-(-across // columns)), max(1, lanes // 32))
    block = block_of(channels, lanes // strips)
    warps = min(warps, max(1, strips * block * size // 128))
    # On a multiprocessor run 5 programs of 4 warps with 96 registers, 4 with 128 and 3 with 168.
    if kernel == "backward" and size < 4:
        return Strips(columns, strips, block, warps, 168, 3 * 132 * 4 // warps)
    return Strips(columns, strips, block, warps, 128 if stride == 2 else None, 4 * 132 * 4 // warps)


def tiles_each(length: int, block: int, wanted: int) -> int:
    """Blocks of `length` that a program goes over, so that there are at most `wanted` programs."""
    return -(-length // (block * max(1, wanted)))


def programs_for(length: int, block: int, each: int) -> int:
    return -(-length // (block * each))


def block_of(size: int, most: int) -> int:
    """The smallest block that holds `size`, between 16, which products need, and `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
