"""Searches tile sizes for MobileNetV1's pointwise kernels, on an NVIDIA GPU: `python -m benchmarks.mobilenet_tiles
[half|tf32|single] [forward|backward|weight|both ...] [BATCH ...]`.

Half precision, all kernels and batches of 64 and 256 if not given. `both` are the gradients of input and weight, by one
kernel or, where the tile is None, by one for each. For each layer shape and kernel, prints the present tile and the
three fastest tried, with milliseconds for each batch. A tile that is 2 % faster than the present one is also printed as
a line for the table TILES in src/models/mobilenet_v1/fast/tiles.py. All are compiled first, on all cores.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn

from src.gpu.triton_helpers import precision
from src.measure.replay import device_ms
from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.fast import body, pointwise, precompile, tiles
from src.models.mobilenet_v1.network import ConvNormReLU

KERNELS = "forward", "backward", "weight", "both"
DTYPES = {"half": torch.float16, "tf32": torch.float32, "single": torch.float32}
# Rows, warps, stages and most programs of the kernel of both gradients; its other sizes are the channels.
BOTH = [(64, 4, 3, 396), (64, 4, 2, 528), (64, 4, 3, 264), (64, 8, 3, 132), (64, 8, 2, 264), (128, 8, 3, 132),
        (128, 8, 2, 264), (64, 16, 3, 132)]  # fmt: skip


class Group(NamedTuple):
    """A kernel of a layer whose input has `side` x `side` pixels."""

    kernel: str
    layer: ConvNormReLU
    side: int

    def key(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Returns the key in the table TILES."""
        conv: nn.Conv2d = self.layer.conv
        return self.kernel, conv.in_channels, conv.out_channels, "half" if dtype != torch.float32 else precision(dtype)


def main() -> None:
    """Prints the table."""
    words = sys.argv[1:]
    name = next((word for word in words if word in DTYPES), "half")
    batches = [int(word) for word in words if word.isdigit()] or [64, 256]
    torch.set_float32_matmul_precision("highest" if name == "single" else "high")
    dtype = DTYPES[name]
    kernels = [word for word in words if word in KERNELS] or list(KERNELS)
    tried = {group: choices(group, dtype) for group in groups(kernels, dtype)}
    with precompile.record_launches() as launches:
        for group, options in tried.items():
            for choice in options:
                for batch in batches:
                    with chosen(group, dtype, choice):
                        call(group, batch, dtype, "meta")()
    print(f"{torch.cuda.get_device_name()}, {name}, batches {batches}: {len(launches)} kernels to compile", flush=True)
    precompile.compile_all(launches)
    for group, options in tried.items():
        report(group.key(dtype), timed(group, options, batches, dtype))


def groups(kernels: list[str], dtype: torch.dtype) -> Iterator[Group]:
    side, seen = 112, set()
    for layer in MobileNetV1().layers()[1:]:
        conv = layer.conv
        shape = (conv.in_channels, conv.out_channels, side)
        if conv.kernel_size == (1, 1) and shape not in seen:
            seen.add(shape)
            is_narrow = dtype != torch.float32 and conv.in_channels * conv.out_channels <= 128 * 128
            yield from (Group(kernel, layer, side) for kernel in kernels if kernel != "both" or is_narrow)
        side = -(-side // conv.stride[0])


def choices(group: Group, dtype: torch.dtype) -> list[Any]:
    """Returns the present tile, then those to try."""
    return list(dict.fromkeys(products(group, dtype)))


def products(group: Group, dtype: torch.dtype) -> Iterator[Any]:
    kernel, inputs, outputs, name = group.key(dtype)
    if kernel == "both":
        yield tiles.tile_of_both(tiles.MANY_ROWS, inputs, outputs, name)
        yield None
        size = tiles.block_of(inputs, 128), tiles.block_of(outputs, 128)
        for height, warps, stages, programs in BOTH:
            yield tiles.Tile(height, *size, warps, stages, programs)
        return
    yield tiles.tile_of(kernel, tiles.MANY_ROWS, inputs, outputs, name)
    sizes = [(128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 32, 8, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4),
             (64, 256, 64, 4, 3), (64, 256, 64, 8, 3), (128, 256, 64, 8, 3), (64, 64, 64, 4, 4), (128, 64, 128, 4, 3),
             (64, 128, 128, 4, 3), (64, 128, 128, 8, 3), (128, 128, 128, 8, 2)]  # fmt: skip
    rows, columns, summed = outputs, inputs, tiles.MANY_ROWS
    if kernel != "weight":
        rows = tiles.MANY_ROWS
        columns, summed = (outputs, inputs) if kernel == "forward" else (inputs, outputs)
    for height, width, depth, warps, stages in sizes:
        deep, programs = depth if name == "half" else depth // 2, 132 * (2 if height * width >= 128 * 128 else 4)
        if height <= rows and width <= columns and deep <= summed:
            yield tiles.Tile(height, width, deep, warps, stages, programs)
            yield tiles.Tile(height, width, deep, warps, stages, programs * 2 if kernel != "weight" else programs // 2)


@contextmanager
def chosen(group: Group, dtype: torch.dtype, choice: Any) -> Iterator[None]:
    """Puts a tile into the table, and restores the table at the end."""
    table, key = tiles.TILES, group.key(dtype)
    before = dict(table)
    table[key] = choice
    if choice is None:
        del table[key]
    try:
        yield
    finally:
        table.clear()
        table.update(before)


def call(group: Group, batch: int, dtype: torch.dtype, device: str) -> Callable[[], object]:
    """Returns the call to time, with its inputs allocated."""
    conv: nn.Conv2d = group.layer.conv

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(*shape, device=device, dtype=dtype)

    z = numbers(batch, group.side, group.side, conv.in_channels, dtype=dtype)
    norm, slopes = numbers(4, conv.in_channels), numbers(3, conv.out_channels)
    weight = body.weight_matrices([group.layer], dtype)[0].to(device)
    out, g = (numbers(batch, group.side, group.side, conv.out_channels, dtype=dtype) for _ in range(2))
    return {
        "forward": lambda: pointwise.forward(z, norm, weight),
        "backward": lambda: pointwise.backward(g, out, slopes, weight, z, norm),
        "weight": lambda: pointwise.backward_weight(g, out, slopes, z, norm),
        "both": lambda: pointwise.gradients(g, out, slopes, weight, z, norm),
    }[group.kernel]


def timed(group: Group, options: list[Any], batches: list[int], dtype: torch.dtype) -> dict[Any, tuple[float, ...]]:
    """Milliseconds of each configuration for each batch; infinity if it fails, such as for lack of shared memory."""
    times: dict[Any, list[float]] = {choice: [] for choice in options}
    for batch in batches:
        run = call(group, batch, dtype, "cuda")
        for choice, so_far in times.items():
            with chosen(group, dtype, choice):
                try:
                    so_far.append(device_ms(run, calls=5, repeats=3))
                except Exception as error:  # Triton raises several classes
                    print(f"# {group.key(dtype)} {choice}: {str(error).splitlines()[0]}")
                    so_far.append(torch.inf)
    return {choice: tuple(measured) for choice, measured in times.items()}


def report(key: tuple[Any, ...], times: dict[Any, tuple[float, ...]]) -> None:
    """Prints the present configuration, the best three, and the line for the table."""
    now = next(iter(times))
    best = sorted(times, key=lambda choice: prod(times[choice]))[:3]
    for title, choice in (("now", now), *(("best", choice) for choice in best)):
        milliseconds = " ".join(f"{ms:.4f}" for ms in times[choice])
        print(f"# {title} {milliseconds} {choice and tuple(choice)}")
    if prod(times[best[0]]) < 0.98 ** len(times[now]) * prod(times[now]):
        line = f"Tile{tuple(best[0])}," if best[0] else "none of these lines"
        print(f"    {str(key).replace(chr(39), chr(34))}: {line}", flush=True)


if __name__ == "__main__":
    main()
