"""Times variants of DistilBERT's kernels on an NVIDIA GPU: `python -m benchmarks.distilbert_variants [WORD ...]`.

Each line is a kernel with other block sizes, stages or tiles than those in use, which are the first; WORDs select
kernels by their names. The batches are those of `distilbert_kernels` in bfloat16: 96 x 512 tokens, and 96 packed
sentences. L2 is overwritten before each call, as by a training step. `difference` is the largest one to the first
variant's results, relative to the largest element: tiles change roundings (about 1e-2), stages nothing.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.distilbert_kernels import DIM, HEADS, WIDE, batches
from src.measure.replay import device_ms
from src.models.distilbert.fast import attention, rows
from src.models.distilbert.fast.attention import Tiles
from src.models.distilbert.layout import Layout, Tokens
from src.models.distilbert.network import EPS

OVERWRITTEN = 2**28  # bytes, more than L2 has
NORMS: list[dict[str, int]] = [
    {"STAGES": 2},
    {"BLOCK": 2, "STAGES": 3, "maxnreg": 128},
    {"BLOCK": 2, "STAGES": 4, "maxnreg": 128},
    {"BLOCK": 1, "STAGES": 2},
    {"BLOCK": 1, "STAGES": 3},
    {"BLOCK": 1, "STAGES": 4},
    {"BLOCK": 4, "STAGES": 3},
]
GELUS = [
    {"BLOCK": block, "WIDTH": width, "STAGES": stages, "num_warps": warps}
    for block, width, stages, warps in (
        *((2, 512, stages, 4) for stages in (1, 2, 3, 4)),
        *((1, 1024, 1, 4), (1, 1024, 3, 4), (4, 256, 1, 4), (4, 512, 1, 4)),
        *((8, 256, 1, 4), (1, 512, 1, 2), (1, 512, 3, 2), (2, 1024, 1, 8)),
    )
]
FORWARD_GELUS = [{"BLOCK": size, "num_warps": warps} for size, warps in ((1024, 4), (2048, 4), (2048, 8), (512, 2))]
# by whether the batch is padded
FORWARD = {
    True: [Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3), Tiles(128, 64, 4, 2)],
    False: [Tiles(16, 16, 1, 2, 152), Tiles(16, 16, 1, 2), Tiles(16, 16, 1, 1), Tiles(16, 16, 2, 2)],
}
BACKWARD = {
    True: [
        Tiles(64, 64, 4, 3),
        Tiles(64, 64, 4, 2),
        Tiles(64, 64, 4, 3, once=True),
        Tiles(64, 64, 4, 2, once=True),
        Tiles(64, 128, 8, 3, once=True),
        Tiles(64, 128, 8, 2, once=True),
        Tiles(128, 64, 8, 2, once=True),
        Tiles(32, 64, 4, 3, once=True),
        Tiles(32, 64, 4, 3, 168, once=True),
    ],
    False: [
        Tiles(16, 16, 2, 2, 128),
        Tiles(16, 16, 2, 1, 128),
        Tiles(16, 16, 1, 2),
        Tiles(16, 16, 1, 1),
        Tiles(16, 16, 4, 2),
    ],
}


def main() -> None:
    """Prints one line for each kernel, batch and variant."""
    words = sys.argv[1:]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | tokens | variant | us | difference |\n|---|---:|---|---:|---:|")
    overwritten = torch.empty(OVERWRITTEN, dtype=torch.uint8, device="cuda")
    alone = device_ms(overwritten.zero_)
    for batch in batches(["padded"])[:1] + batches(["packed"]):
        for name, (call, module, constant, variants) in kernels_of(batch).items():
            expected: list[Tensor] = []
            for shown, value in variants.items() if not words or any(word in name for word in words) else ():
                with patch.object(module, constant, value):
                    try:
                        results = [x.double() for x in call()]
                        both = device_ms(lambda call=call: (overwritten.zero_(), call()))
                    except Exception as error:
                        print(f"| {name} | {batch.ids.numel()} | {shown} | {type(error).__name__}: {error} | |")
                        continue
                expected = expected or results
                pairs = zip(results, expected, strict=True)
                difference = max(float((mine - other).abs().max() / other.abs().max()) for mine, other in pairs)
                us = 1e3 * (both - alone)
                print(f"| {name} | {batch.ids.numel()} | {shown} | {us:.1f} | {difference:.1e} |", flush=True)


def kernels_of(batch: Tokens) -> dict[str, tuple[Callable[[], Sequence[Tensor]], Any, str, Mapping[str, Any]]]:
    """Returns by name: a call that returns results, and the module, constant and values of it that are tried."""
    count, generator = batch.ids.numel(), torch.Generator("cuda").manual_seed(0)
    x, residual, grad, q, k, v = (
        torch.randn(count, DIM, device="cuda", generator=generator).bfloat16() for _ in range(6)
    )
    h, wide = (torch.randn(count, WIDE, device="cuda", generator=generator).bfloat16() for _ in range(2))
    weight, bias = torch.ones(DIM, device="cuda"), torch.zeros(DIM, device="cuda")
    drop, none = rows.Drop(0.1, torch.tensor(5, device="cuda")), rows.Drop()
    partials = rows.new_partials(count, 6 * DIM + WIDE, x)
    of_norm, of_wide = partials[:, : 3 * DIM], partials[:, 3 * DIM : 3 * DIM + WIDE]
    _, statistics = rows.add_norm(x, residual, weight, bias, EPS, drop)
    _, plain = rows.add_norm(x, residual, weight, bias, EPS, none)
    options = attention.AttentionOptions(Layout.of(batch).sentences, HEADS, drop)
    is_padded = options.sentences.padded
    numbers = attention.numbers_of(options, k)
    attended, logs = attention.attend(q, k, v, options, numbers)
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    def attend_backward() -> list[Tensor]:
        sums = attention.attend_backward(grad, q, k, v, attended, logs, grads, options, numbers)
        return [*grads, sums.sum(0)]

    def gelu_backward() -> list[Tensor]:
        return [rows.gelu_backward(wide, h, of_wide), of_wide.sum(0)]

    def norm_backward(drop: Any, statistics: Tensor) -> list[Tensor]:
        return [*rows.add_norm_backward(grad, x, residual, weight, statistics, drop, of_norm), of_norm.sum(0)]

    def tables(tried: str) -> dict[str, Any]:
        forward, backward = FORWARD[is_padded], BACKWARD[is_padded]
        pairs = [(tile, backward[0]) for tile in forward] if tried == "forward" else [(forward[0], t) for t in backward]
        return {str(tuple(pair[tried != "forward"])): {"half": ((float("inf"), *pair),)} for pair in pairs}

    return {
        "gelu_backward": (gelu_backward, rows, "GELU_BACKWARD", named(GELUS)),
        "gelu": (lambda: [rows.gelu(h)], rows, "GELU", named(FORWARD_GELUS)),
        "add_norm_backward, dropout": (
            lambda: norm_backward(drop, statistics),
            rows,
            "ADD_NORM_BACKWARD",
            named(NORMS),
        ),
        "add_norm_backward": (lambda: norm_backward(none, plain), rows, "ADD_NORM_BACKWARD", named(NORMS)),
        "attend": (lambda: [attention.attend(q, k, v, options, numbers)[0]], attention, "TILES", tables("forward")),
        "attend_backward": (attend_backward, attention, "TILES", tables("backward")),
    }


def named(variants: Sequence[Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    return {" ".join(f"{key}={value}" for key, value in variant.items()): variant for variant in variants}


if __name__ == "__main__":
    main()
