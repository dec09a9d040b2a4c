"""Tile sizes and numbers of programs by shape; benchmarks/mobilenet_tiles.py measures them."""

from typing import Any, NamedTuple

from src.gpu.triton_helpers import power_of_2

PROGRAMS = 4 * 132  # about four on each multiprocessor of an H200


class Tile(NamedTuple):
    """A tile of a product, rows by columns, and the depth of the sum that is loaded at a time."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    programs: int  # at most; each handles an equal share of the rows


class Strips(NamedTuple):
    """The strips of columns and the channels of a depthwise program; see strips_triton."""

    columns: int
    strips: int
    channels: int
    warps: int
    registers: int | None  # most registers of a thread, so that more programs run at a time
    programs: int  # at most; fewer images are cut into segments of rows


# Measured on an H200 as faster than the rule; by kernel, inputs, outputs and precision, for MANY_ROWS rows or more, or
# with a fifth entry for that number of rows. None is only for `both`: one kernel for each gradient.
# `weight` was measured with 264 programs; a multiprocessor has registers for one at a time, and 132 leave half of the
# partial sums: 128 inputs and outputs 0.055 ms instead of 0.064.
TILES: dict[tuple[Any, ...], Tile | None] = {
    ("forward", 32, 64, "half"): Tile(128, 64, 32, 4, 4, 528),
    ("forward", 64, 128, "half"): Tile(128, 64, 64, 4, 4, 528),
    ("forward", 128, 128, "half"): Tile(128, 64, 64, 4, 4, 528),
    ("forward", 128, 256, "half"): Tile(128, 64, 64, 4, 4, 1056),
    ("forward", 256, 256, "half"): Tile(128, 128, 64, 4, 3, 264),
    ("weight", 128, 256, "half"): Tile(128, 128, 64, 8, 3, 132),
    ("weight", 256, 256, "half"): Tile(128, 256, 64, 8, 3, 132),
    ("forward", 256, 512, "half"): Tile(128, 128, 64, 4, 3, 528),
    ("weight", 256, 512, "half"): Tile(64, 256, 64, 8, 3, 132),
    ("weight", 256, 512, "half", 50176): Tile(128, 256, 64, 8, 3, 132),
    ("forward", 512, 512, "half"): Tile(128, 128, 64, 4, 3, 528),
    ("weight", 512, 512, "half"): Tile(128, 256, 64, 8, 3, 132),
    ("forward", 512, 1024, "half"): Tile(128, 256, 64, 8, 3, 528),
    ("backward", 512, 1024, "half"): Tile(64, 256, 64, 8, 3, 528),
    ("weight", 512, 1024, "half"): Tile(64, 256, 64, 8, 3, 132),
    ("forward", 1024, 1024, "half"): Tile(128, 256, 64, 8, 3, 528),
    ("backward", 1024, 1024, "half"): Tile(128, 256, 64, 8, 3, 528),
    ("weight", 1024, 1024, "half"): Tile(64, 256, 64, 8, 3, 132),
    # Of pixels, inputs and outputs: most for which registers hold the weight's gradient.
    ("both", 32, 64, "half"): Tile(64, 32, 64, 4, 3, 396),
    ("both", 64, 128, "half"): Tile(64, 64, 128, 8, 3, 132),
    ("both", 128, 128, "half"): Tile(64, 128, 128, 8, 3, 132),
}
MANY_ROWS = 2048
# Likewise, by kernel, output columns, channels, bytes of an element and images.
STRIPS: dict[tuple[Any, ...], Strips] = {
    ("forward", 56, 64, 2, 64): Strips(7, 4, 64, 4, 128, 528),
    ("forward", 28, 256, 2, 64): Strips(7, 4, 64, 4, 128, 528),
    ("forward", 14, 256, 2, 64): Strips(7, 2, 64, 2, 128, 1056),
    ("forward", 14, 256, 2, 256): Strips(7, 2, 128, 4, 128, 528),
    ("forward", 14, 512, 2, 64): Strips(7, 2, 64, 2, 168, 1056),
    ("forward", 14, 512, 2, 256): Strips(7, 2, 128, 4, 168, 1056),
    ("forward", 7, 512, 2, 64): Strips(7, 1, 128, 2, None, 1584),
    ("forward", 7, 512, 2, 256): Strips(7, 1, 64, 1, 128, 2112),
    ("forward", 7, 1024, 2, 64): Strips(7, 1, 64, 1, 168, 2112),
    ("backward", 56, 64, 2, 256): Strips(7, 4, 64, 4, 168, 1188),
    ("backward", 14, 256, 2, 256): Strips(7, 2, 64, 2, 168, 2376),
    ("backward", 14, 512, 2, 256): Strips(7, 2, 128, 4, 168, 792),
}


def strips_of(kernel: str, across: int, channels: int, size: int, images: int) -> Strips:
    """Returns the strips for `across` output columns and elements of `size` bytes.

    A strip has at most 7 columns; a thread has 4 bytes of channels of a strip, or fewer.
    """
    measured = STRIPS.get((kernel, across, channels, size, images))
    if measured is not None:
        return measured
    lanes, columns = 4 * 32 * 4 // size, min(across, 7)
    # A warp loads the 128 bytes of a cache line, if there are enough channels.
    strips = min(power_of_2(-(-across // columns)), lanes // block_of(channels, 128 // size))
    block = block_of(channels, lanes // strips)
    warps = min(4, max(1, strips * block * size // 128))
    # 128 registers a thread allow 16 warps, 168 allow 12. Without a limit, backward in half precision takes more.
    if kernel == "backward" and size < 4:
        return Strips(columns, strips, block, warps, 168, 3 * 132 * 4 // warps)
    return Strips(columns, strips, block, warps, None, 4 * 132 * 4 // warps)


def tile_of(kernel: str, rows: int, inputs: int, outputs: int, precision: str) -> Tile:
    """Returns the tile of a product.

    forward: [rows, inputs] x [inputs, outputs]; backward: [rows, outputs] x [outputs, inputs];
    weight: [outputs, rows] x [rows, inputs].
    """
    tile = measured_tile(kernel, rows, inputs, outputs, precision)
    if tile:
        return tile
    deep = 64 if precision == "half" else 32
    if kernel == "weight":
        size = block_of(outputs, 128), block_of(inputs, 128), block_of(rows, deep)
        return Tile(*size, 8 if outputs > 64 else 4, 3, 2 * 132)
    columns, summed = (outputs, inputs) if kernel == "forward" else (inputs, outputs)
    size = 128 if rows >= 128 else block_of(rows, 128), block_of(columns, 128), block_of(summed, deep)
    return Tile(*size, 8 if columns >= 64 else 4, 3, PROGRAMS)


def tile_of_both(rows: int, inputs: int, outputs: int, precision: str) -> Tile | None:
    """Returns the tile of the kernel of both gradients, pixels by inputs by outputs; None: one kernel for each."""
    return measured_tile("both", rows, inputs, outputs, precision)


def measured_tile(kernel: str, rows: int, inputs: int, outputs: int, precision: str) -> Tile | None:
    """Returns the table's tile for these rows, or for many; None: it has none, or says that there is none."""
    key = kernel, inputs, outputs, precision
    return TILES.get((*key, rows), TILES.get(key) if rows >= MANY_ROWS else None)


def tiles_per_program(length: int, block: int, max_programs: int) -> int:
    """Returns the tiles of a program, for at most `max_programs` programs over `length` rows."""
    return -(-length // (block * max(1, max_programs)))


def programs_for(length: int, block: int, tiles: int) -> int:
    """Returns the number of programs over `length` rows with `tiles` tiles each of `block` rows."""
    return -(-length // (block * tiles))


def block_of(size: int, most: int) -> int:
    """Returns the smallest power of two that holds `size`, from 16 (the least for products) to `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))
