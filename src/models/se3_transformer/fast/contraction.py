"""The fused contraction with its gradient: the jobs of the kernels in `contraction_triton` for a plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from src.gpu.partial_sums import sum_partials
from src.gpu.transpose import transposed
from src.gpu.triton_helpers import launch, power_of_2, precision, reads_registers
from src.models.se3_transformer.fast import contraction_triton as kernels
from src.models.se3_transformer.fast.plan import Plan, mixing_on

MAX_OUTPUTS = 128  # channels of all output degrees of one m; the limit of a backward tile
FORWARD_OUTPUTS = 32  # the limit of a forward tile, whose sums of both signs and radial weights fill the registers
SPLITS = 4  # parts of the edges with partial weight gradients, computed in parallel and added in a fixed order


@dataclass(frozen=True)
class Tiles:
    """Edges and input channels of one kernel's tile, its warps and pipeline stages."""

    edges: int
    inputs: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, int]:
        """Options of the launch."""
        return {"num_warps": self.warps, "num_stages": self.stages}


# The fastest measured on an H200 (docs/notes/2026-11-21-se3-kernels.md). `benchmarks.se3_kernels tiles` times others.
HALF = {"forward": Tiles(256, 2, 8, 3), "data": Tiles(128, 4, 8, 3), "weight": Tiles(64, 4, 4, 3)}
SINGLE = {"forward": Tiles(128, 2, 8, 2), "data": Tiles(128, 2, 8, 2), "weight": Tiles(32, 4, 4, 4)}


@dataclass(frozen=True)
class Outputs:
    """The plan's blocks of one |m|, whose weights are consecutive, and their output columns."""

    m: int
    num_inputs: int
    channels: int  # of each block
    plus: int
    minus: int
    weight_a: int
    weight_b: int
    columns_plus: tuple[int, ...]
    columns_minus: tuple[int, ...]


@cache
def outputs_of(plan: Plan) -> tuple[Outputs, ...]:
    """Returns the plan's blocks, joined if they have the same m and equal channels."""
    joined = []
    for (m, channels), group in groupby(plan.blocks, key=lambda block: (block.m, block.channels)):
        first, *_ = blocks = list(group)
        pieces = [piece for block in blocks for piece in block.pieces]
        columns_plus, columns_minus = (
            tuple(start + i for piece, start in zip(pieces, starts, strict=True) for i in range(piece.width))
            for starts in ([piece.plus for piece in pieces], [piece.minus for piece in pieces])
        )
        offsets = first.plus, first.minus, first.weight_a, first.weight_b
        joined.append(Outputs(m, first.num_inputs, channels, *offsets, columns_plus, columns_minus))
    return tuple(joined)


def supported(plan: Plan, mid: int) -> bool:
    """Returns whether the kernels support the plan: one job for all output degrees of an m, which must fit a tile."""
    if mid not in (16, 32, 64) or plan.group.outputs.equal_channels is None:
        return False
    return all(len(out.columns_plus) <= MAX_OUTPUTS for out in outputs_of(plan))


def chunks(width: int, largest: int = MAX_OUTPUTS) -> Iterator[tuple[int, int]]:
    """Yields (begin, size) of tiles that cover `width` columns; sizes are powers of two from 16 to `largest`."""
    begin = 0
    while begin < width:
        left = width - begin
        size = 1 << (left.bit_length() - 1)
        size = max(min(size, largest), 16)
        yield begin, size
        begin += size


def even(plan: Plan, inputs: int) -> bool:
    """Returns whether tiles of `inputs` input channels divide every block evenly."""
    return all(out.num_inputs % inputs == 0 for out in outputs_of(plan))


@cache
def aligned(plan: Plan) -> bool:
    """Returns whether output columns fill their tiles in runs of 16 that begin at multiples of 16."""
    pieces = [piece for block in plan.blocks for piece in block.pieces]
    starts = all(x % 16 == 0 for p in pieces for x in (p.begin, p.width, p.plus, p.minus))
    widths = [len(out.columns_plus) for out in outputs_of(plan)]
    return starts and plan.num_columns % 16 == 0 and all(sum(inner_widths(width)) == width for width in widths)


def inner_widths(count: int) -> tuple[int, int]:
    """Returns the tile widths of an inner dimension of `count` channels: a power of two, and a second one if exact."""
    sizes = [size for _, size in chunks(count)]
    return (sizes[0], sum(sizes[1:])) if len(sizes) <= 2 else (power_of_2(count), 0)


def padded(columns: tuple[int, ...], begin: int, size: int) -> list[int]:
    """Returns `size` columns from `begin`, then -1."""
    part = list(columns[begin : begin + size])
    return part + [-1] * (size - len(part))


@dataclass(frozen=True)
class Jobs:
    """The job table of a kernel: one row per job, each row's kind, and the tile width (or widths) of each kind."""

    rows: Int[Tensor, "jobs row"]
    kinds: Int[Tensor, " jobs"]
    widths: tuple[Any, ...]

    @classmethod
    def of(cls, jobs: list[tuple[Any, list[int]]], device: torch.device) -> "Jobs":
        """Builds the table from (width, row) of each job. The widest come first, because they take longest."""
        jobs = sorted(jobs, key=lambda job: job[0], reverse=True)
        widths = tuple(dict.fromkeys(width for width, _ in jobs))
        length = max(len(row) for _, row in jobs)
        rows = [row + [-1] * (length - len(row)) for _, row in jobs]
        kinds = [widths.index(width) for width, _ in jobs]
        tables = (torch.tensor(table, dtype=torch.int32, device=device) for table in (rows, kinds))
        return cls(next(tables), next(tables), widths)

    @property
    def constants(self) -> dict[str, Any]:
        """Compile-time arguments of the kernel."""
        return {"ROW": self.rows.shape[1], "WIDTHS": self.widths}


@cache
def forward_jobs(plan: Plan, device: torch.device) -> Jobs:
    jobs = []
    for out in outputs_of(plan):
        signs = 2 if out.m else 1
        for begin, size in chunks(len(out.columns_plus), FORWARD_OUTPUTS):
            head = [0, out.num_inputs, out.weight_a, out.weight_b, out.plus, out.minus, out.channels, begin]
            columns = [padded(signed, begin, FORWARD_OUTPUTS) for signed in (out.columns_plus, out.columns_minus)]
            jobs.append(((signs, size), [*head, *columns[0], *columns[1]]))
    return Jobs.of(jobs, device)


@cache
def data_jobs(plan: Plan, device: torch.device) -> Jobs:
    size = sum(plan.group.size((d_in, d_out)) for _, _, d_out, d_in in plan.terms())  # from weights to their negatives
    widths = {out.m: inner_widths(len(out.columns_plus) * (2 if out.m else 1)) for out in outputs_of(plan)}
    jobs = []
    for out in outputs_of(plan):
        count = len(out.columns_plus)
        for sign in (1, -1)[: 2 if out.m else 1]:
            same, other = (out.columns_plus, out.columns_minus)[::sign]
            weight_b = out.weight_b + (size if sign > 0 else 0)
            column = (out.plus, out.minus)[::sign][0]
            head = [0, out.num_inputs, out.weight_a, weight_b, column, count, out.channels, 0]
            columns = same + other if out.m else same
            jobs.append((widths[out.m], head + padded(columns, 0, sum(widths[out.m]))))
    return Jobs.of(jobs, device)


@cache
def weight_jobs(plan: Plan, inputs: int, device: torch.device) -> Jobs:
    """Returns jobs of `inputs` input channels each. The products of columns `b` and their outputs are times `sign`."""
    widths = {out.m: inner_widths(len(out.columns_plus)) for out in outputs_of(plan)}
    widest = max(map(sum, widths.values()))
    jobs = []
    for out in outputs_of(plan):
        outputs = padded(out.columns_plus, 0, widest) + padded(out.columns_minus, 0, widest)
        for term in range(2 if out.m else 1):
            a, b = (out.plus, out.minus) if term == 0 else (out.minus, out.plus)
            weight, sign = (out.weight_a, 1) if term == 0 else (out.weight_b, -1)
            for at in range(0, out.num_inputs, inputs):
                head = [sign, at, out.num_inputs, weight, out.channels, a, b if out.m else -1, 0]
                jobs.append((widths[out.m], head + outputs))
    return Jobs.of(jobs, device)


class Mix(torch.autograd.Function):
    """`Plan.mix` in one product. Its gradient sums those of all splits in the same product."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, plan: Plan) -> Tensor:
        ctx.plan, ctx.shape = plan, weight.shape
        mixing = mixing_on(plan, weight.device, weight.dtype)
        return (mixing @ weight.view(mixing.shape[1], -1)).view(-1).expand(SPLITS, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        unmixing = unmixing_on(ctx.plan, grad.device, grad.dtype)
        with torch.autocast(grad.device.type, enabled=False):
            return (unmixing @ grad.reshape(unmixing.shape[1], -1)).view(ctx.shape), None


@cache
@torch.inference_mode(False)
def unmixing_on(plan: Plan, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "frequencies _"]:
    """Returns the transposed mixing, once for each split; cached, because it is the same in every step."""
    return mixing_on(plan, device, dtype).t().repeat(1, SPLITS)


def mix(weight: Float[Tensor, "rows mid"], plan: Plan) -> Float[Tensor, "splits _"] | Float[Tensor, " _"]:
    """Returns `plan.mix` for `contract`, as SPLITS views of it where one product gives the gradient of all of them."""
    return Mix.apply(weight, plan) if plan.mixes_at_once else plan.mix(weight)  # type: ignore[return-value]


def signed(mixed: Float[Tensor, " _"], dtype: torch.dtype) -> Float[Tensor, "2 _"]:
    """Returns the mixed weights and their negatives in `dtype`, by one launch."""
    out = mixed.new_empty(2, len(mixed), dtype=dtype)
    return torch.mul(mixed, signs_on(mixed.device, mixed.dtype), out=out)


@cache
@torch.inference_mode(False)
def signs_on(device: torch.device, dtype: torch.dtype) -> Float[Tensor, "2 1"]:
    """Returns 1 and -1; cached, because a CUDA graph cannot capture the copy."""
    return torch.tensor([[1.0], [-1.0]], device=device, dtype=dtype)


class Contraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, columns: Tensor, mixed: Tensor, plan: Plan) -> Tensor:
        h, x, w = hidden.contiguous(), columns.contiguous(), signed(mixed[0], columns.dtype)
        ctx.save_for_backward(h, x, w)
        ctx.plan, ctx.dtypes = plan, (hidden.dtype, mixed.dtype)
        edges, tiles = len(x), tiles_of(x.dtype)["forward"]
        covered = sum(len(o.columns_plus) * (2 if o.m else 1) for o in outputs_of(plan)) == plan.num_columns
        out = (x.new_empty if covered else x.new_zeros)(edges, plan.num_columns)
        jobs = forward_jobs(plan, x.device)
        launch(kernels.contract, (-(-edges // tiles.edges), len(jobs.rows)), 
            h, x, w, out, jobs.rows, jobs.kinds, edges, x.shape[1], out.shape[1],
            MID=h.shape[1], BE=tiles.edges, IB=tiles.inputs, EVEN=even(plan, tiles.inputs), ALIGNED=aligned(plan),
            PRECISION=precision(x.dtype), **jobs.constants, **tiles.options,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        h, x, w = ctx.saved_tensors
        g = grads[0].to(x.dtype).contiguous()
        hidden_dtype, mixed_dtype = ctx.dtypes
        grad_hidden, grad_columns = backward_data(h, x, w, g, ctx.plan)
        grad_mixed = backward_weight(h, x, g, ctx.plan, w.shape[1])
        return grad_hidden.to(hidden_dtype), grad_columns, grad_mixed.to(mixed_dtype), None


def backward_data(h: Tensor, x: Tensor, w: Tensor, g: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Returns gradients of the hidden layer (float32) and of the input columns; `w` is `signed`."""
    edges, tiles = len(x), tiles_of(x.dtype)["data"]
    covered = sum(o.num_inputs * (2 if o.m else 1) for o in outputs_of(plan)) == x.shape[1]
    grad_columns = (torch.empty_like if covered else torch.zeros_like)(x)
    channels = {o.channels for o in outputs_of(plan)}
    # Tensor cores need the inner dimension contiguous for float32; here it is the output channels.
    swapped = x.dtype == torch.float32 and len(channels) == 1
    if swapped:
        w = w.view(-1, channels.pop(), h.shape[1]).transpose(1, 2).contiguous()
    jobs = data_jobs(plan, x.device)
    partials = x.new_empty(len(jobs.rows), edges, h.shape[1], dtype=torch.float32)
    launch(kernels.contract_backward_data, (-(-edges // tiles.edges), len(jobs.rows)), 
        h, x, w, g, partials, grad_columns, jobs.rows, jobs.kinds, edges, x.shape[1], g.shape[1],
        MID=h.shape[1], BE=tiles.edges, IB=tiles.inputs, EVEN=even(plan, tiles.inputs), ALIGNED=aligned(plan),
        TRANSPOSED=swapped, PRECISION=precision(x.dtype), **jobs.constants,
        **tiles.options,
    )  # fmt: skip
    return sum_partials(partials), grad_columns


def backward_weight(h: Tensor, x: Tensor, g: Tensor, plan: Plan, size: int) -> Tensor:
    """Returns the gradient of the mixed weights over each split of the edges, float32 [SPLITS, size]."""
    tiles = tiles_of(x.dtype)["weight"]
    blocks = -(-len(x) // tiles.edges)
    partials = x.new_empty(SPLITS, size, dtype=torch.float32)
    jobs = weight_jobs(plan, tiles.inputs, x.device)
    length, mid = blocks * tiles.edges, h.shape[1]
    h, x, g = (transposed(tensor.contiguous(), length, x.dtype) for tensor in (h, x, g))
    launch(
        kernels.contract_backward_weight, (len(jobs.rows), SPLITS), h, x, g, partials, jobs.rows, jobs.kinds, length,
        size, -(-blocks // SPLITS), MID=mid, BE=tiles.edges, IB=tiles.inputs, EVEN=even(plan, tiles.inputs),
        PRECISION=precision(x.dtype), SETTLE=reads_registers(x), **jobs.constants,
        **tiles.options,
    )  # fmt: skip
    return partials


def tiles_of(dtype: torch.dtype) -> dict[str, Tiles]:
    return SINGLE if dtype == torch.float32 else HALF


def contract(
    hidden: Float[Tensor, "edges mid"],
    columns: Float[Tensor, "edges inputs"],
    mixed: Float[Tensor, "splits _"] | Float[Tensor, " _"],
    plan: Plan,
) -> Float[Tensor, "edges outputs"]:
    """Computes `plan.contract` in the dtype of `columns` with float32 sums. `mixed` is that of `mix` or `plan.mix`."""
    copies = mixed if mixed.dim() == 2 else mixed.expand(SPLITS, -1)
    return Contraction.apply(hidden, columns, copies, plan)  # type: ignore[return-value]
