"""Which blocks suit MobileNetV1's kernels, on an NVIDIA GPU: `python -m benchmarks.mobilenet_tiles [half|tf32|single]
[BATCH ...] [forward] [backward] [weight] [depthwise]`, half precision, a batch of 64 and all kernels if not given.

A line for each layer of another shape and each kernel: what the rules in `fused` choose, then the three best of all
that are tried, with milliseconds. All are compiled beforehand, on all cores.
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from src.measure.replay import device_ms
from src.models.mobilenet_v1 import MobileNetV1
from src.models.mobilenet_v1.kernels import dispatch
from src.models.mobilenet_v1.network import ConvNormReLU

DTYPES = {"half": torch.float16, "tf32": torch.float32, "single": torch.float32}
KERNELS = ("forward", "backward", "weight", "depthwise")


class Case(NamedTuple):
    """A kernel of a layer and its blocks; None: as the rules have it."""

    kernel: str
    layer: int
    side: int
    tile: tuple[int, ...] | None
    programs: int = 4 * 132

    def __str__(self) -> str:
        return "rules" if self.tile is None else f"{'x'.join(map(str, self.tile))} {self.programs}"


def main() -> None:
    """Prints the table."""
    words = sys.argv[1:]
    name = next((word for word in words if word in DTYPES), "half")
    kernels = [word for word in words if word in KERNELS] or list(KERNELS)
    batches = [int(word) for word in words if word.isdigit()] or [64]
    layers = MobileNetV1().layers()
    for batch in batches:
        groups = [list(found) for found in cases(layers, kernels)]
        jobs = [(case, batch, name) for group in groups for case in group]
        workers = max(1, (os.cpu_count() or 2) - 2)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            runs = dict(zip((job[0] for job in jobs), pool.map(compiled, jobs, chunksize=4), strict=True))
        print(f"\n{torch.cuda.get_device_name()}, {name}, batch {batch}: rows x columns x depth x warps x stages,")
        print("or pixels x channels x warps, then programs")
        for group in groups:
            times = {case: device_ms(call(case, batch, name)) for case in group if runs[case]}
            best = sorted(times, key=lambda case: times[case])[:3]
            conv = layers[group[0].layer].conv
            shape = f"{group[0].kernel} {conv.in_channels} to {conv.out_channels}, {group[0].side}/{conv.stride[0]}"
            print(f"{shape}: " + "; ".join(f"{case} {times[case]:.4f}" for case in (group[0], *best)), flush=True)


def cases(layers: list[ConvNormReLU], kernels: list[str]) -> Iterator[list[Case]]:
    """Of each layer of another shape and each kernel: the rules' choice first, then what is to be tried."""
    side, seen = 112, set()
    for number, layer in enumerate(layers[1:], 1):
        conv = layer.conv
        shape = (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, side)
        if shape not in seen:
            seen.add(shape)
            if conv.kernel_size == (1, 1):
                for kernel in kernels:
                    if kernel != "depthwise":
                        yield [Case(kernel, number, side, None), *tried(kernel, number, side, conv)]
            elif "depthwise" in kernels:
                for kernel in ("depthwise forward", "depthwise backward"):
                    yield [Case(kernel, number, side, None), *spread(kernel, number, side, conv)]
        side = -(-side // conv.stride[0])


def spread(kernel: str, number: int, side: int, conv: torch.nn.Conv2d) -> Iterator[Case]:
    """Blocks of a depthwise layer's kernel: pixels, channels, warps."""
    for pixels, block, warps, programs in product((8, 16, 32), (32, 64, 128), (4, 8), (8, 16)):
        if 2 <= pixels * block / (32 * warps) <= 8 and block <= conv.in_channels:
            yield Case(kernel, number, side, (pixels, block, warps), programs * 132)


def tried(kernel: str, number: int, side: int, conv: torch.nn.Conv2d) -> Iterator[Case]:
    """Blocks of a pointwise layer's kernel."""
    columns = conv.out_channels if kernel == "forward" else conv.in_channels
    summed = conv.in_channels if kernel == "forward" else conv.out_channels
    if kernel == "weight":
        for rows, width, depth, stages in product((64, 128), (32, 64, 128), (32, 64), (2, 3)):
            if rows <= conv.out_channels and width <= conv.in_channels:
                yield Case(kernel, number, side, (rows, width, depth, 4 if rows * width < 8192 else 8, stages), 2 * 132)
        return
    for rows, width, depth, stages in product((64, 128), (32, 64, 128, 256), (32, 64), (2, 3)):
        if width <= columns and depth <= summed and rows * width >= 4096:
            programs = 4 * 132
            yield Case(kernel, number, side, (rows, width, depth, 4 if rows * width < 16384 else 8, stages), programs)


def call(case: Case, batch: int, name: str) -> Callable[[], object]:
    """What is timed; it holds what it computes on."""
    torch.set_float32_matmul_precision("highest" if name == "single" else "high")
    fused: Any = dispatch.kernels()
    dtype, layer = DTYPES[name], MobileNetV1().layers()[case.layer].cuda()
    z = torch.randn(batch, case.side, case.side, layer.conv.in_channels, device="cuda", dtype=dtype)
    norm, slopes = torch.rand(4, z.shape[-1], device="cuda"), torch.rand(3, layer.conv.out_channels, device="cuda")
    weight, stride = fused.body.matrices([layer], dtype)[0], layer.conv.stride[0]
    side = -(-case.side // stride)
    out = torch.randn(batch, side, side, layer.conv.out_channels, device="cuda", dtype=dtype)
    g = torch.randn_like(out)
    runs = {
        "forward": lambda: fused.pointwise.forward(z, norm, weight),
        "backward": lambda: fused.pointwise.backward(g, out, slopes, weight, z, norm),
        "weight": lambda: fused.pointwise.backward_weight(g, out, slopes, z, norm),
        "depthwise forward": lambda: fused.depthwise.forward(z, norm, weight, stride),
        "depthwise backward": lambda: fused.depthwise.backward(g, out, slopes, weight, z, norm, stride),
    }

    def run() -> object:
        with chosen(fused, case):
            return runs[case.kernel]()

    return run


@contextmanager
def chosen(fused: Any, case: Case) -> Iterator[None]:
    """What the rules choose is this, for a while."""
    module, values = fused.pointwise, dict[str, Any]()
    if case.tile is not None and case.kernel.startswith("depthwise"):
        pixels, block, warps = case.tile
        tile = {"PIXELS": pixels, "num_warps": warps}
        module = fused.depthwise
        values = {"FORWARD": tile, "BACKWARD": tile, "BLOCK": (block, block), "PROGRAMS": case.programs // 2}
    elif case.tile is not None:
        tile = module.Tile(*case.tile)
        count = "SPREAD" if case.kernel == "weight" else "PROGRAMS"
        values = {"product_tile": lambda *_: tile, "weight_tile": lambda *_: tile, count: case.programs}
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def compiled(job: tuple[Case, int, str]) -> bool:
    """Whether the kernel runs with these blocks; Triton keeps what it has compiled on disk."""
    try:
        call(*job)()
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


if __name__ == "__main__":
    main()
