"""The bond flow: Glow over the squeezed adjacency.

Inside, a sample is [positions, channels]: with channels last, convolutions, dense products and normalisations need no
copies.
"""

from collections.abc import Callable
from itertools import pairwise
from math import isqrt
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.errors import UserError
from src.models.moflow.actnorm import ActNorm, BatchNorm
from src.models.moflow.flow import FlowChain, FlowStep, Limit

PLU_DIVERGES, PLU_FALLS = 0.1, 0.016  # channels x learning rate: see `divergence_note`


def squeeze(adj: Float[Tensor, "batch kinds nodes nodes"], fold: int) -> Float[Tensor, "batch positions channels"]:
    """Returns `fold` x `fold` blocks as channels (space to depth), ordered (kind, row in block, column in block)."""
    blocks = adj.unflatten(3, (-1, fold)).unflatten(2, (-1, fold))  # batch, kind, y, row, x, column
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unsqueeze(z: Float[Tensor, "batch positions channels"], fold: int) -> Float[Tensor, "batch kinds nodes nodes"]:
    """Inverts `squeeze`."""
    size = isqrt(z.shape[1])
    blocks = z.unflatten(2, (-1, fold, fold)).unflatten(1, (size, size))
    return blocks.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


class InvertibleConv(nn.Module):
    """Invertible 1x1 convolution with a free matrix, initialised to a random rotation."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(random_rotation(num_channels))

    def matrix(self) -> Float[Tensor, "channels channels"]:
        """Returns the matrix that multiplies the channels of every position."""
        return self.weight

    def log_abs_det(self) -> Float[Tensor, ""]:
        """Returns log |det matrix|, computed in float64: the determinant is a product of hundreds of factors."""
        return torch.linalg.slogdet(self.weight.double())[1].to(self.weight.dtype)

    def forward(
        self, z: Float[Tensor, "batch positions channels"]
    ) -> tuple[Float[Tensor, "batch positions channels"], Float[Tensor, ""]]:
        """Returns the mixed channels and the log-determinant of one sample."""
        return self._multiply(z, self.matrix()), z.shape[1] * self.log_abs_det()

    def reverse(self, z: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch positions channels"]:
        """Inverts `forward`."""
        # `inv` would synchronise with the device to check for errors.
        inverse, _ = torch.linalg.inv_ex(self.matrix().double())
        return self._multiply(z, inverse.to(z.dtype))

    @staticmethod
    def _multiply(
        z: Float[Tensor, "batch positions channels"], matrix: Float[Tensor, "channels channels"]
    ) -> Float[Tensor, "batch positions channels"]:
        with torch.autocast(z.device.type, enabled=False):  # the latent is never rounded to half precision
            return F.linear(z, matrix)


class InvertibleConvLU(InvertibleConv):
    """InvertibleConv of the matrix P L (U + diag(sign exp(log_s))): P and sign are fixed, L, U and log_s learned."""

    permutation: Tensor
    sign: Tensor

    def __init__(self, num_channels: int) -> None:
        nn.Module.__init__(self)
        permutation, lower, upper = torch.linalg.lu(random_rotation(num_channels))
        self.register_buffer("permutation", permutation.argmax(1))
        self.register_buffer("sign", upper.diagonal().sign())
        self.lower = nn.Parameter(lower.tril(-1))
        self.upper = nn.Parameter(upper.triu(1))
        self.log_s = nn.Parameter(upper.diagonal().abs().log())

    def matrix(self) -> Float[Tensor, "channels channels"]:
        lower = self.lower.tril(-1) + torch.eye(len(self.log_s), dtype=self.log_s.dtype, device=self.log_s.device)
        upper = self.upper.triu(1) + torch.diag(self.sign * self.log_s.exp())
        with torch.autocast(self.log_s.device.type, enabled=False):
            return (lower @ upper).index_select(0, self.permutation)

    def log_abs_det(self) -> Float[Tensor, ""]:
        return self.log_s.sum()


def random_rotation(size: int) -> Float[Tensor, "size size"]:
    """Returns an orthogonal matrix: the Q of a Gaussian matrix."""
    return torch.linalg.qr(torch.randn(size, size))[0]


class Conv3x3(nn.Conv2d):
    """A padded 3x3 convolution on square maps given as [batch, positions, channels]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Conv3x3":
        """Lets the weight's channels be innermost, as the maps', once it is on its device: a GPU does it sooner."""
        super()._apply(fn, recurse)
        self.weight.data = self.weight.data.contiguous(memory_format=torch.channels_last)
        return self

    def forward(self, input: Float[Tensor, "batch positions inputs"]) -> Float[Tensor, "batch positions outputs"]:
        """Returns the convolved maps, whose positions are flattened row by row."""
        size = isqrt(input.shape[1])
        images = input.transpose(1, 2).unflatten(2, (size, size))
        return super().forward(images).flatten(2).transpose(1, 2)


class CouplingNetwork(nn.Module):
    """3x3 convolutions with BatchNorm and ReLU between: an affine map for one half of the channels from the other."""

    def __init__(self, num_channels: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.widths = (num_channels // 2, *hidden, num_channels)
        self.convs = nn.ModuleList(Conv3x3(*pair) for pair in pairwise(self.widths))
        self.norms = nn.ModuleList(BatchNorm(width) for width in hidden)

    def forward(self, half: Float[Tensor, "batch positions half"]) -> Float[Tensor, "batch positions channels"]:
        """Returns scale logits and shifts, concatenated along the channels."""
        values = self.convs[0](half)
        for norm, conv in zip(self.norms, self.convs[1:], strict=True):
            normalised = norm(values.flatten(0, 1)).unflatten(0, values.shape[:2])
            values = conv(F.relu(normalised))
        return values


class BondStep(FlowStep):
    """ActNorm, an optional 1x1 convolution, and an affine coupling of two channel halves."""

    def __init__(self, num_channels: int, hidden: tuple[int, ...], conv_lu: int, swap: bool) -> None:
        super().__init__()
        self.actnorm = ActNorm(num_channels)
        self.conv = None if conv_lu == 2 else (InvertibleConv, InvertibleConvLU)[conv_lu](num_channels)
        self.coupling = CouplingNetwork(num_channels, hidden)
        self.swap = swap

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the conditioning half and the half to be transformed."""
        first, second = z.chunk(2, 2)
        return (second, first) if self.swap else (first, second)

    def _join(self, condition: Tensor, transformed: Tensor) -> Tensor:
        return torch.cat((transformed, condition) if self.swap else (condition, transformed), 2)

    def _scale_and_shift(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        scale_logits, shift = self.coupling(condition).to(condition.dtype).chunk(2, 2)
        return scale_logits, shift

    def forward(
        self, z: Float[Tensor, "batch positions channels"]
    ) -> tuple[Float[Tensor, "batch positions channels"], Float[Tensor, " batch"]]:
        """Returns the transformed sample and its log-determinant."""
        z, log_det = self.actnorm(z)
        if self.conv is not None:
            z, conv_log_det = self.conv(z)
            log_det = log_det + conv_log_det
        condition, other = self._split(z)
        scale_logits, shift = self._scale_and_shift(condition)
        z = self._join(condition, (other + shift) * torch.sigmoid(scale_logits))
        return z, log_det + F.logsigmoid(scale_logits).sum((1, 2))

    def reverse(self, z: Float[Tensor, "batch positions channels"]) -> Float[Tensor, "batch positions channels"]:
        """Inverts `forward`."""
        condition, other = self._split(z)
        scale_logits, shift = self._scale_and_shift(condition)
        z = self._join(condition, other * (1 + torch.exp(-scale_logits)) - shift)
        if self.conv is not None:
            z = self.conv.reverse(z)
        return self.actnorm.reverse(z)


def divergence_note(flow: "BondFlow", lr: float) -> str | None:
    """Returns a note where the PLU convolutions may diverge at this learning rate of Adam, else None.

    A step of `lr` in every entry of L and U moves their product by up to channels x lr, times the norm of the other.
    Trainings with channels x lr of 0.2 or more diverged within a dozen steps, with 0.16 the bits rose before they fell,
    with 0.016 they fell (docs/models/moflow.md).
    """
    conv, channels = cast(BondStep, flow.steps[0]).conv, cast(FlowStep, flow.steps[0]).actnorm.loc.numel()
    if not isinstance(conv, InvertibleConvLU) or channels * lr < PLU_DIVERGES:
        return None
    way_out = f"give hp.lr={PLU_FALLS / channels:.0e}, or conv_lu=0 or 2"
    what = f"model.task.network.conv_lu=1 of {channels:,} channels may diverge at hp.lr={lr:g}, as the original does"
    return f"note: {what}; {way_out}"


class BondFlow(FlowChain):
    """The unconditional flow over adjacency tensors. The latent has the adjacency's shape.

    Args:
        conv_lu: 1x1 convolution in every step: 0 a free matrix, 1 its PLU form, 2 none (the halves alternate instead).
    """

    def __init__(
        self,
        num_nodes: int,
        num_kinds: int,
        fold: int,
        hidden: tuple[int, ...],
        num_flows: int,
        conv_lu: int,
    ) -> None:
        num_channels = num_kinds * fold**2
        if num_nodes % fold or num_channels % 2:
            raise UserError(f"bond_squeeze={fold} must divide num_nodes={num_nodes} and give an even channel count")
        if conv_lu not in (0, 1, 2):
            raise UserError(f"conv_lu={conv_lu} must be 0 (free 1x1 convolution), 1 (PLU) or 2 (none)")
        swaps = [conv_lu == 2 and index % 2 == 1 for index in range(num_flows)]
        super().__init__([BondStep(num_channels, hidden, conv_lu, swap) for swap in swaps])
        self.fold = fold

    def forward(
        self, adj: Float[Tensor, "batch kinds nodes nodes"]
    ) -> tuple[Float[Tensor, "batch kinds nodes nodes"], Float[Tensor, " batch"]]:
        """Returns the latent and the log-determinant of each sample."""
        z, log_det = self.run(squeeze(adj, self.fold))
        return unsqueeze(z, self.fold), log_det

    def reverse(
        self, z: Float[Tensor, "batch kinds nodes nodes"], limit: Limit | None = None
    ) -> Float[Tensor, "batch kinds nodes nodes"]:
        """Inverts `forward`; returns continuous adjacency tensors. `limit`: see `FlowChain.run_reverse`."""
        return unsqueeze(self.run_reverse(squeeze(z, self.fold), limit=limit), self.fold)
