"""3 x 3 depthwise convolutions with the kernels of `depthwise_triton`, forward and backward."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch
from src.models.mobilenet_v1.fast import depthwise_backward_triton, depthwise_triton
from src.models.mobilenet_v1.fast.norm import Partials
from src.models.mobilenet_v1.fast.tiles import strips_of


def plan(z: Tensor, stride: int, kernel: str) -> tuple[int, int, tuple[int, int], dict[str, Any]]:
    """Returns the launch plan of a kernel.

    These are programs per block of channels, blocks, (segments of an image, output rows of a segment) and constants.
    """
    images, height, width, channels = z.shape
    down, across = -(-height // stride), -(-width // stride)
    strips = strips_of(kernel, across, channels, z.dtype.itemsize, images)
    groups, blocks = -(-across // (strips.columns * strips.strips)), -(-channels // strips.channels)
    segments = min(down, max(1, strips.programs // (images * groups * blocks)))
    rows = -(-down // segments)
    segments = -(-down // rows)
    constants = {"STRIDE": stride, "HEIGHT": height, "WIDTH": width, "DOWN": down, "ACROSS": across,
                 "CHANNELS": channels, "COLUMNS": strips.columns, "STRIPS": strips.strips, "GROUPS": groups,
                 "BLOCK": strips.channels, "num_warps": strips.warps, "maxnreg": strips.registers}  # fmt: skip
    return images * segments * groups, blocks, (segments, rows), constants


def forward(
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
    weight: Float[Tensor, "channels 9"],
    stride: int,
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images down across channels"], Partials]:
    """Returns the convolution of relu(BatchNorm(z)), at most `cap` if that is positive, and its partial statistics."""
    programs, blocks, share, constants = plan(z, stride, "forward")
    out = z.new_empty(len(z), constants["DOWN"], constants["ACROSS"], z.shape[-1])
    values = z.new_empty(programs, 3, z.shape[-1], dtype=torch.float32)
    launch(depthwise_triton.forward, (programs * blocks,), z, norm, weight, out, values, *share, CAP=cap, **constants)
    return out, Partials(values, out.numel() // z.shape[-1])


def backward(
    g: Float[Tensor, "images down across channels"],
    out: Float[Tensor, "images down across channels"],
    slopes: Float[Tensor, "3 channels"],
    weight: Float[Tensor, "channels 9"],
    z: Float[Tensor, "images height width channels"],
    norm: Float[Tensor, "4 channels"],
    stride: int,
    cap: float = 0.0,
) -> tuple[Float[Tensor, "images height width channels"], Partials]:
    """Returns the gradient of BatchNorm(z), and its partial sums with those of the weight's gradient."""
    programs, blocks, share, constants = plan(z, stride, "backward")
    g_in = torch.empty_like(z)
    values = z.new_empty(programs, 11, z.shape[-1], dtype=torch.float32)
    launch(
        depthwise_backward_triton.backward, (programs * blocks,), g, out, slopes, weight, z, norm, g_in, values,
        *share, CAP=cap, **constants,
    )  # fmt: skip
    return g_in, Partials(values, z.numel() // z.shape[-1])
