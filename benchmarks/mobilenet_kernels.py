"""Times MobileNetV1's kernels on an NVIDIA GPU: `python -m benchmarks.mobilenet_kernels [half|tf32|single]
[BATCH ...]`.

Half precision and batches of 64 and 256 images of 224 x 224 if not given. One line for each layer of the published
network after the first: forward; gradient of the input (a depthwise layer's includes the weight's); gradient of a
pointwise layer's weight; and the two small kernels that finish sums. GB/s use the fewest bytes that a kernel must move.
Then the whole feature extractor, forward and backward, with the kernels and with plain torch.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from src.measure.replay import device_ms
from src.models.mobilenet_v1 import MobileNetV1, fast
from src.models.mobilenet_v1.fast import body, depthwise, pointwise, precompile
from src.models.mobilenet_v1.fast import norm as norms
from src.models.mobilenet_v1.network import ConvNormReLU

DTYPES = {"half": torch.float16, "tf32": torch.float32, "single": torch.float32}


def main() -> None:
    """Prints the tables."""
    words = sys.argv[1:]
    name = next((word for word in words if word in DTYPES), "half")
    torch.set_float32_matmul_precision("highest" if name == "single" else "high")
    torch.backends.cudnn.allow_tf32 = name != "single"
    batches = [int(word) for word in words if word.isdigit()] or [64, 256]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {name}\n")
    prepare(batches, DTYPES[name])
    for batch in batches:
        network = MobileNetV1().cuda()
        print(f"| batch {batch} | forward ms | GB/s | input ms | GB/s | weight ms | GB/s | small ms |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        totals = [0.0] * 4
        side = 112
        for layer in network.layers()[1:]:
            times, rates, side = timed(layer, batch, side, DTYPES[name])
            totals = [total + ms for total, ms in zip(totals, times, strict=True)]
            cells = [f"{ms:.3f} | {rate:.0f}" for ms, rate in zip(times[:3], rates, strict=True)]
            print(f"| {named(layer, side)} | {' | '.join(cells)} | {times[3]:.3f} |", flush=True)
        sums = " | | ".join(f"{total:.3f}" for total in totals[:3])
        print(f"| all | {sums} | | {totals[3]:.3f} |\n", flush=True)
        print("| features | forward ms | forward and backward ms | images/s |\n|---|---:|---:|---:|")
        for engine, kernels in (("kernels", "auto"), ("torch", "off")):
            forward, both = whole(fast.accelerate(network, kernels), batch, DTYPES[name])
            print(f"| {engine} | {forward:.3f} | {both:.3f} | {1000 * batch / both:.0f} |", flush=True)
        print()


def prepare(batches: list[int], dtype: torch.dtype) -> None:
    """Compiles all kernels, on all cores."""
    network = MobileNetV1().cuda()
    autocast = torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32)
    with precompile.record_launches() as launches, autocast:
        for batch in batches:
            body.features(torch.empty(batch, 3, 224, 224, device="cuda"), network.layers()).sum().backward()
    precompile.compile_all(launches)


def named(layer: ConvNormReLU, side: int) -> str:
    conv = layer.conv
    kind = "pointwise" if conv.kernel_size == (1, 1) else f"depthwise /{conv.stride[0]}"
    return f"{kind} {conv.in_channels} to {conv.out_channels}, {side} x {side}"


def timed(
    layer: ConvNormReLU, batch: int, side: int, dtype: torch.dtype
) -> tuple[tuple[float, float, float, float], tuple[float, float, float], int]:
    """Milliseconds of a layer's kernels (the two small ones as one sum), GB/s, and the side of the layer's output."""
    conv, channels = layer.conv, layer.conv.in_channels
    z = torch.randn(batch, side, side, channels, device="cuda", dtype=dtype)
    norm = torch.rand(4, channels, device="cuda")
    weight = body.weight_matrices([layer], dtype)[0]
    is_pointwise, stride = not layer.is_depthwise, conv.stride[0]

    def forward() -> Any:
        if is_pointwise:
            return pointwise.forward(z, norm, weight)
        return depthwise.forward(z, norm, weight, stride)

    out, partials = forward()
    g, slopes = torch.randn_like(out), torch.rand(3, conv.out_channels, device="cuda")

    def backward() -> Any:
        if is_pointwise:
            return pointwise.backward(g, out, slopes, weight, z, norm)
        return depthwise.backward(g, out, slopes, weight, z, norm, stride)

    def of_weight() -> Tensor:
        return pointwise.backward_weight(g, out, slopes, z, norm)

    sums = backward()[1]
    small = device_ms(lambda: norms.conclude(partials, layer.norm))
    small += device_ms(lambda: norms.conclude_backward(sums, norm))
    read, written = z.numel() * dtype.itemsize, out.numel() * dtype.itemsize
    times = device_ms(forward), device_ms(backward), device_ms(of_weight) if is_pointwise else 0.0
    moved = read + written, 2 * read + 2 * written, read + 2 * written
    rates = tuple(size / ms / 1e6 if ms else 0.0 for size, ms in zip(moved, times, strict=True))
    return (*times, small), rates, out.shape[1]  # type: ignore[return-value]


def whole(network: MobileNetV1, batch: int, dtype: torch.dtype) -> tuple[float, float]:
    """Milliseconds of the feature extractor: forward, and forward and backward together."""
    images = torch.randn(batch, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    parameters = [*network.stem.parameters(), *network.blocks.parameters()]

    def features() -> Tensor:
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            return network.features(images)

    gradient = torch.randn_like(features())
    with torch.no_grad():
        forward = device_ms(features)
    return forward, device_ms(lambda: torch.autograd.grad(features(), parameters, gradient), calls=3)


if __name__ == "__main__":
    main()
