"""Searches tile sizes for MobileNetV1's kernels, on an NVIDIA GPU: `python -m benchmarks.mobilenet_tiles
[half|tf32|single] [forward|backward|weight|both|down|up ...] [BATCH ...] [SECONDSs]`.

Half precision, all kernels and batches of 64 and 256 if not given. `both` are the gradients of input and weight, by one
kernel or, where the tile is None, by one for each; `down` and `up` are depthwise layers, forward and backward. The
layers that move most bytes are first, and the search ends after SECONDS (`100s`). For each layer shape, kernel and
batch, prints the present tile and the three fastest tried, with milliseconds. One that is 2 % faster than the present
one is also printed as a line for the tables TILES and STRIPS in src/models/mobilenet_v1/fast/tiles.py. All cores
compile what comes next.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import nn

from src.gpu.triton_helpers import precision
from src.measure.replay import device_ms
from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.fast import body, depthwise, pointwise, precompile, tiles
from src.models.mobilenet_v1.network import ConvNormReLU
from src.system.workers import WorkerPool, cpu_count

POINTWISE, DEPTHWISE = ("forward", "backward", "weight", "both"), {"down": "forward", "up": "backward"}
DTYPES = {"half": torch.float16, "tf32": torch.float32, "single": torch.float32}
# Rows, warps, stages and most programs of the kernel of both gradients; its other sizes are the channels.
BOTH = [(64, 4, 3, 396), (64, 4, 2, 528), (64, 4, 3, 264), (64, 8, 3, 132), (64, 8, 2, 264), (128, 8, 3, 132),
        (128, 8, 2, 264), (64, 16, 3, 132)]  # fmt: skip
BOTH_ARE = "backward", "weight"
PASSES = {"forward": (1, 1), "backward": (2, 2), "weight": (1, 2), "both": (2, 2), "down": (1, 1), "up": (2, 2)}


class Group(NamedTuple):
    """A kernel of a layer whose input has `side` x `side` pixels."""

    kernel: str
    layer: ConvNormReLU
    side: int

    @property
    def across(self) -> int:
        return -(-self.side // self.layer.conv.stride[0])

    @property
    def shape(self) -> tuple[Any, ...]:
        conv: nn.Conv2d = self.layer.conv
        return self.kernel, conv.in_channels, conv.out_channels, self.side, conv.stride[0]

    @property
    def moved(self) -> int:
        """Returns the elements of an image that the kernel must read or write."""
        conv, (inputs, outputs) = self.layer.conv, PASSES[self.kernel]
        return inputs * conv.in_channels * self.side**2 + outputs * conv.out_channels * self.across**2

    def key(self, dtype: torch.dtype, batch: int) -> tuple[Any, ...]:
        """Returns the key in the table TILES or STRIPS."""
        conv: nn.Conv2d = self.layer.conv
        if self.kernel in DEPTHWISE:
            return DEPTHWISE[self.kernel], self.across, conv.in_channels, dtype.itemsize, batch
        name = "half" if dtype != torch.float32 else precision(dtype)
        return self.kernel, conv.in_channels, conv.out_channels, name, batch * self.side**2


def main() -> None:
    """Prints the table."""
    words, begin_s = sys.argv[1:], time.monotonic()
    name = next((word for word in words if word in DTYPES), "half")
    batches = [int(word) for word in words if word.isdigit()] or [64, 256]
    end_s = begin_s + next((float(word[:-1]) for word in words if word[:-1].isdigit() and word[-1] == "s"), 1e9)
    torch.set_float32_matmul_precision("highest" if name == "single" else "high")
    dtype = DTYPES[name]
    kernels = [word for word in words if word in PASSES] or list(PASSES)
    print(f"{torch.cuda.get_device_name()}, {name}, batches {batches}", flush=True)
    searches = [(group, batch, choices(group, dtype, batch)) for group in groups(kernels, dtype) for batch in batches]
    with WorkerPool(max(1, cpu_count() - 1)) as pool:
        compiling = dict[precompile.Launch, Future[None]]()
        waiting = list[list[Future[None]]]()
        for group, batch, options in searches:
            launches = launches_of(group, options, batch, dtype)
            for launch in launches - compiling.keys():
                compiling[launch] = pool.submit(precompile.compile_one, launch)
            waiting.append([compiling[launch] for launch in launches])
        for number, (group, batch, options) in enumerate(searches):
            for future in waiting[number]:
                with suppress(Exception):  # a tile that does not compile fails again below
                    future.result(timeout=max(0.0, end_s - time.monotonic()))
            if time.monotonic() > end_s:
                print(f"# {len(searches) - number} of {len(searches)} searches are left")
                break
            report(group, batch, dtype, timed(group, options, batch, dtype))


def launches_of(group: Group, options: list[Any], batch: int, dtype: torch.dtype) -> set[precompile.Launch]:
    with precompile.record_launches() as launches:
        for choice in options:
            with chosen(group, dtype, batch, choice):
                call(group, batch, dtype, "meta")()
    return launches


def groups(kernels: list[str], dtype: torch.dtype) -> list[Group]:
    """Returns the kernels to time, first those that move most bytes in all layers of a shape."""
    side, counts, first = 112, Counter[tuple[Any, ...]](), dict[tuple[Any, ...], Group]()
    for layer in MobileNetV1().layers()[1:]:
        conv = layer.conv
        is_narrow = dtype != torch.float32 and conv.in_channels * conv.out_channels <= 128 * 128
        for kernel in DEPTHWISE if layer.is_depthwise else POINTWISE:
            if kernel in kernels and (is_narrow if kernel == "both" else not is_narrow or kernel not in BOTH_ARE):
                group = Group(kernel, layer, side)
                counts[group.shape] += 1
                first.setdefault(group.shape, group)
        side = -(-side // conv.stride[0])
    return sorted(first.values(), key=lambda group: -counts[group.shape] * group.moved)


def choices(group: Group, dtype: torch.dtype, batch: int) -> list[Any]:
    """Returns the present tile, then those to try."""
    options = strips(group, dtype, batch) if group.kernel in DEPTHWISE else products(group, dtype, batch)
    return list(dict.fromkeys(options))


def strips(group: Group, dtype: torch.dtype, batch: int) -> Iterator[tiles.Strips]:
    """Yields programs of as many or fewer warps and registers, and images cut into as many or more segments."""
    channels = group.layer.conv.in_channels
    now = tiles.strips_of(DEPTHWISE[group.kernel], group.across, channels, dtype.itemsize, batch)
    yield now
    for cut in (1, 2, 4):
        if now.warps % cut or now.channels // cut < 128 // dtype.itemsize:
            continue
        for registers in {now.registers, 128, 168}:
            for programs in (now.programs, 3 * now.programs // 2, 2 * now.programs, 3 * now.programs):
                yield now._replace(
                    channels=now.channels // cut, warps=now.warps // cut, registers=registers, programs=programs * cut
                )


def products(group: Group, dtype: torch.dtype, batch: int) -> Iterator[tiles.Tile | None]:
    kernel, inputs, outputs, name, rows = group.key(dtype, batch)
    if kernel == "both":
        yield tiles.tile_of_both(rows, inputs, outputs, name)
        yield None
        size = tiles.block_of(inputs, 128), tiles.block_of(outputs, 128)
        for height, warps, stages, programs in BOTH:
            yield tiles.Tile(height, *size, warps, stages, programs)
        return
    yield tiles.tile_of(kernel, rows, inputs, outputs, name)
    sizes = [(128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 256, 64, 4, 3),
             (64, 256, 64, 8, 3), (128, 256, 64, 8, 3), (64, 64, 64, 4, 4), (64, 128, 128, 4, 3)]  # fmt: skip
    height, columns, summed = outputs, inputs, rows
    if kernel != "weight":
        height, (columns, summed) = rows, (outputs, inputs) if kernel == "forward" else (inputs, outputs)
    for high, wide, depth, warps, stages in sizes:
        deep = tiles.block_of(summed, depth if name == "half" else depth // 2)
        programs = 132 * (2 if high * wide >= 128 * 128 else 4)
        if high <= height and wide <= columns:
            yield tiles.Tile(high, wide, deep, warps, stages, programs)
            yield tiles.Tile(high, wide, deep, warps, stages, programs * 2 if kernel != "weight" else programs // 2)


@contextmanager
def chosen(group: Group, dtype: torch.dtype, batch: int, choice: Any) -> Iterator[None]:
    """Puts a tile into its table, and restores the table at the end."""
    table: dict[Any, Any] = tiles.STRIPS if group.kernel in DEPTHWISE else tiles.TILES
    before = dict(table)
    table[group.key(dtype, batch)] = choice
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
    weight, stride = body.weight_matrices([group.layer], dtype)[0].to(device), conv.stride[0]
    out, g = (numbers(batch, group.across, group.across, conv.out_channels, dtype=dtype) for _ in range(2))
    return {
        "forward": lambda: pointwise.forward(z, norm, weight),
        "backward": lambda: pointwise.backward(g, out, slopes, weight, z, norm),
        "weight": lambda: pointwise.backward_weight(g, out, slopes, z, norm),
        "both": lambda: pointwise.gradients(g, out, slopes, weight, z, norm),
        "down": lambda: depthwise.forward(z, norm, weight, stride),
        "up": lambda: depthwise.backward(g, out, slopes, weight, z, norm, stride),
    }[group.kernel]


def timed(group: Group, options: list[Any], batch: int, dtype: torch.dtype) -> dict[Any, float]:
    """Returns milliseconds of each configuration; infinity if it fails, such as for lack of shared memory."""
    times, run = dict[Any, float](), call(group, batch, dtype, "cuda")
    for choice in options:
        with chosen(group, dtype, batch, choice):
            try:
                times[choice] = device_ms(run, calls=5, repeats=3)
            except Exception as error:  # Triton raises several classes
                print(f"# {group.key(dtype, batch)} {choice}: {str(error).splitlines()[0]}")
                times[choice] = torch.inf
    return times


def report(group: Group, batch: int, dtype: torch.dtype, times: dict[Any, float]) -> None:
    """Prints the present configuration with its bandwidth, the best three, and the line for the table."""
    now, *_ = times
    best = sorted(times, key=times.__getitem__)[:3]
    rate = batch * group.moved * dtype.itemsize / times[now] / 1e9
    print(f"# {group.shape} batch {batch}, now {rate:.2f} TB/s")
    for title, choice in (("now", now), *(("best", choice) for choice in best)):
        print(f"# {title} {times[choice]:.4f} {choice and tuple(choice)}")
    if times[best[0]] < 0.98 * times[now]:
        line = f"{type(best[0]).__name__}{tuple(best[0])}," if best[0] else "None,"
        print(f"    {str(group.key(dtype, batch)).replace(chr(39), chr(34))}: {line}", flush=True)


if __name__ == "__main__":
    main()
