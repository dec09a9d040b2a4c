"""Atom steps that need their own row alone, by kernels: training with the exact log-determinant, and generating in it.

As in `atom_flow` a step is three kernels each way. Backwards, with kept statistics, samples do not depend on each
other: what BatchNorm's gradient would have of the batch's sums is 0, and these sums are the statistics' gradients.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import launch, working_dtype
from src.models.moflow.actnorm import BATCH_NORM_EPS, BATCH_NORM_MOMENTUM, BatchNorm
from src.models.moflow.atom import AtomFlow, AtomStep
from src.models.moflow.fast import atom_backward_triton, atom_triton
from src.models.moflow.fast import row_triton as kernels
from src.models.moflow.fast.atom_flow import (
    FastAtomFlow,
    Sizes,
    convolution_weights,
    is_supported,
    matrices,
    of_convolution,
    parameters_of,
    programs_of_node,
    tile_of,
)
from src.models.moflow.fast.atom_weights import padded, products, weight_gradients
from src.models.moflow.flow import Limit

SAMPLES = 16  # of a program: the fewest that tensor cores take
BLOCK = 8  # nodes that a program holds at a time
Rows = Float[Tensor, "steps layers"]  # of each BatchNorm its step's row


class Direction(NamedTuple):
    """The steps in the order in which they are taken, the rows that they transform, and which way."""

    steps: Sequence[AtomStep]
    rows: Sequence[int]
    reverse: bool = False
    limits: bool = False

    @classmethod
    def of(cls, steps: Sequence[AtomStep], nodes: int, reverse: bool = False, limits: bool = False) -> "Direction":
        rows = [index % nodes for index in range(len(steps))]
        return cls(steps[::-1], rows[::-1], reverse, limits) if reverse else cls(steps, rows)

    def row_of(self, norms: Sequence[Sequence[Tensor]]) -> Rows:
        """Returns the entry of each step's row, of vectors [nodes], or of that row alone, by step and layer."""
        return torch.cat(self.entries(norms)).view(len(self.steps), -1)

    def entries(self, norms: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        pairs = zip(self.rows, norms, strict=True)
        return [vector if len(vector) == 1 else vector[row : row + 1] for row, vectors in pairs for vector in vectors]

    def norms(self) -> list[list[BatchNorm]]:
        return [[cast(BatchNorm, norm) for norm in step.norms] for step in self.steps]


class RowAtomFlow(FastAtomFlow):
    """Also with the exact log-determinant, and backwards with the statistics that training has kept."""

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], adj: Float[Tensor, "batch kinds nodes nodes"]
    ) -> tuple[Float[Tensor, "batch nodes classes"], Float[Tensor, " batch"]]:
        steps = [cast(AtomStep, step) for step in self.steps]
        if steps[0].logdet != "exact":
            return super().forward(x, adj)
        if not self.training or not is_supported(steps, x, adj, of_rows=True):
            return AtomFlow.forward(self, x, adj)
        direction, dtype = Direction.of(steps, x.shape[1]), working_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            parts = x, adj.to(dtype).contiguous(), direction, None, None
            out, log_det, *statistics = Flow.apply(*parts, *parameters_of(steps))  # type: ignore[misc]
            of_norms = zip(*(part.flatten().split(1) for part in statistics), strict=True)
        for norm, pair in zip((norm for norms in direction.norms() for norm in norms), of_norms, strict=True):
            if norm.keeps:
                norm.kept_mean, norm.kept_var = pair
        return out, log_det

    def reverse(
        self,
        z: Float[Tensor, "batch nodes classes"],
        adj: Float[Tensor, "batch kinds nodes nodes"],
        limit: Limit | None = None,
    ) -> Float[Tensor, "batch nodes classes"]:
        steps = [cast(AtomStep, step) for step in self.steps]
        if not cast(BatchNorm, steps[0].norms[0]).reuses or not is_supported(steps, z, adj, of_rows=True):
            return super().reverse(z, adj, limit)
        direction, dtype = Direction.of(steps, z.shape[1], True, limit is not None), working_dtype(z)
        with torch.autocast(z.device.type, enabled=False):
            given = [
                direction.row_of([[cast(Tensor, getattr(norm, name)) for norm in norms] for norms in direction.norms()])
                for name in ("kept_mean", "kept_var")
            ]
            parts = z, adj.to(dtype).contiguous(), direction, *given
            out, beyond, *_ = Flow.apply(*parts, *parameters_of(direction.steps))  # type: ignore[misc]
        if limit is not None:
            limit.beyond = limit.beyond + beyond.mean()
        return out


class Flow(torch.autograd.Function):
    """All steps in a direction; `parameters` are those of `atom_flow.parameters_of` in this order of the steps.

    Returns the output, the log-determinant or what `Limit.beyond` sums of each sample, and the rows' means and biased
    variances. In reverse `given_mean` and `given_var` are these.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, adj: Tensor, direction: Direction, given_mean: Rows | None, given_var: Rows | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        (batch, nodes, classes), dtype, steps, rows = x.shape, adj.dtype, direction.steps, direction.rows
        sizes = Sizes(len(steps), batch, nodes, classes, adj.shape[1], steps[0].widths[:-1])
        count, layers = len(steps), len(sizes.widths)
        by_place = [parameters[i : i + count] for i in range(0, len(parameters), count)]
        convolution = convolution_weights(sizes, by_place[2:6], dtype)
        weights = [matrices(alike, dtype) for alike in by_place[6 + 2 * layers :: 2]]
        loc, scale = affine(direction, by_place)
        x = x.contiguous()
        new = adj.new_empty
        latents = x.new_empty(count + 1, *x.shape)  # behind each step's ActNorm and limit, and the output
        raw = torch.empty_like(latents) if direction.limits else latents  # before the limit
        summed = new(count, 1, batch, 1 + sizes.kinds, sizes.padded_classes)
        hidden = [new(count, 1, batch, width) for width in sizes.widths]
        norms, sums = x.new_empty(count, layers, 8), x.new_zeros(batch)  # 8 numbers, 4 below: aligned
        vectors = x.new_zeros(4, count, layers, 4)  # weight, bias, running mean and variance of the row
        by_norm = direction.norms()
        for vector, name in zip(vectors, ("weight", "bias", "running_mean", "running_var"), strict=True):
            vector[..., 0] = direction.row_of([[getattr(norm, name) for norm in of_step] for of_step in by_norm])
        partials, programs, given = x.new_empty(3, 1), 1, x.new_ones(count, layers, 4)
        if given_mean is not None and given_var is not None:  # as if one program had found them
            given[..., 0], given[..., 1] = given_mean, given_var
        of_between, between = -(-batch // SAMPLES), constants(sizes, direction, adj)
        tiles = [tile_of(sizes, *pair, dtype) for pair in zip(sizes.widths, sizes.widths[1:], strict=False)]
        moved = {"EPS": BATCH_NORM_EPS, "MOMENTUM": BATCH_NORM_MOMENTUM}
        for number in range(count + 1):
            couples, convolves = number > 0, number < count
            last, after = max(number - 1, 0), min(number, count - 1)
            if direction.reverse:
                partials, programs = given[last, -1], 1
            new_partials = x.new_empty(3, of_between)
            launch(
                kernels.between_rows, (of_between,),
                latents[last] if couples else x, hidden[-1][last], partials, *vectors[:, last, -1], norms[last, -1],
                weights[-1][last], steps[last].linears[-1].bias, sums, loc[number], scale[number], adj,
                convolution[after], latents[number], raw[number], summed[after], hidden[0][after], new_partials, batch,
                programs, rows[last], rows[after], COUPLES=couples, CONVOLVES=convolves,
                LIMITS=direction.limits and couples, PARTIALS=padded(programs), **moved, **between,
            )  # fmt: skip
            partials, programs = new_partials, of_between
            for layer, tile in enumerate(tiles) if convolves else ():
                of_layer = programs_of_node(sizes, tile, sizes.widths[layer + 1])
                new_partials = x.new_empty(3, of_layer)
                if direction.reverse:
                    partials, programs = given[number, layer], 1
                launch(
                    atom_triton.layer, (of_layer,),
                    hidden[layer][number], partials, *vectors[:, number, layer], norms[number, layer],
                    weights[layer][number], steps[number].linears[layer].bias, hidden[layer + 1][number], new_partials,
                    batch, 1, programs, PARTIALS=padded(programs), **moved,
                    **tile.constants(adj, *sizes.widths[layer : layer + 2]),
                )  # fmt: skip
                partials, programs = new_partials, of_layer
        if not direction.reverse:
            sums += classes * scale.abs().log().sum()
            for vector, name in zip(vectors[2:], ("running_mean", "running_var"), strict=True):
                running = direction.entries([[getattr(norm, name) for norm in of_step] for of_step in by_norm])
                torch._foreach_copy_(running, list(vector[..., 0].flatten().split(1)))  # pyright: ignore[reportPrivateImportUsage]
        ctx.sizes, ctx.direction = sizes, direction
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            adj, convolution, latents, raw, summed, norms, torch.cat([step.row for step in steps]), loc, scale,
            *hidden, *weights,
        )  # fmt: skip
        mean, variance = norms[..., 0].clone(), (norms[..., 1].pow(-2) - BATCH_NORM_EPS).clamp_min(0)
        return latents[count].clone(), sums, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        sizes, direction = cast(Sizes, ctx.sizes), cast(Direction, ctx.direction)
        adj, convolution, latents, raw, summed, norms, is_row, loc, scale, *rest = ctx.saved_tensors
        count, batch, nodes, classes, _, widths = sizes
        steps, rows, layers, reverse = direction.steps, direction.rows, len(widths), direction.reverse
        hidden, weights = rest[:layers], rest[layers:]
        grad, of_sums, of_mean, of_var = grads
        grad = torch.zeros_like(latents[0]) if grad is None else grad.contiguous()
        of_sums = latents.new_zeros(batch) if of_sums is None else of_sums.contiguous()
        norms = norms.clone()
        for place, gradient in ((4, of_mean), (5, of_var)):
            if gradient is not None:
                norms[..., place] = gradient
        zeros, of_between = latents.new_empty, -(-batch // SAMPLES)
        of_hidden, inputs = ([torch.empty_like(z) for z in hidden] for _ in range(2))
        of_outputs = adj.new_empty(count, 1, batch, 2 * sizes.padded_classes)
        of_norms, of_affine = zeros(count, layers, 4), zeros(count + 1, of_between, 2, nodes)
        none = latents.new_zeros(2, 1)
        latent_grads = [torch.empty_like(grad) for _ in range(2)]
        between = constants(sizes, direction, adj)
        tiles = [tile_of(sizes, *pair, adj.dtype) for pair in zip(widths[1:], widths, strict=False)]
        tile_programs = [programs_of_node(sizes, tile, width) for tile, width in zip(tiles, widths, strict=False)]
        # The sums of the programs behind each BatchNorm: of its output's gradient, and of that times the deviations.
        sums = [zeros(count, 2, programs) for programs in (*tile_programs, of_between)]
        g = hidden[0][0]
        for number in reversed(range(-1, count)):
            couples, convolves = number >= 0, number + 1 < count
            last, after = max(number, 0), min(number + 1, count - 1)
            out, g_out = latent_grads[number % 2], torch.empty_like(hidden[-1][0])
            partials = none if reverse or not convolves else sums[0][after]
            y = (raw if direction.limits and couples else latents)[number + 1]
            launch(
                kernels.between_rows_backward, (of_between,),
                grad, of_sums, g, hidden[0][after], partials, norms[after, 0], of_norms[after, 0], adj,
                convolution[after], scale[number + 1], y, of_affine[number + 1], of_hidden[0][after],
                latents[last], hidden[-1][last], norms[last, -1], weights[-1][last], steps[last].linears[-1].bias,
                of_outputs[last], inputs[-1][last], g_out, sums[-1][last], out, batch, partials.shape[1],
                rows[last], rows[after], COUPLES=couples, CONVOLVES=convolves, LIMITS=direction.limits and couples,
                PARTIALS=padded(partials.shape[1]), **between,
            )  # fmt: skip
            grad, g = out, g_out
            for layer, tile in reversed(list(enumerate(tiles))) if couples else ():
                partials, g_in = none if reverse else sums[layer + 1][number], torch.empty_like(hidden[layer][0])
                launch(
                    atom_backward_triton.layer_backward, (tile_programs[layer],),
                    g, hidden[layer + 1][number], partials, norms[number, layer + 1], of_norms[number, layer + 1],
                    weights[layer][number], hidden[layer][number], norms[number, layer], of_hidden[layer + 1][number],
                    inputs[layer][number], g_in, sums[layer][number], batch, 1, partials.shape[1],
                    STORES=True, PARTIALS=padded(partials.shape[1]), **tile.constants(adj, *widths[layer : layer + 2]),
                )  # fmt: skip
                g = g_in
        of_rows, of_statistics = [of_norms[..., 0], of_norms[..., 1]], list[Tensor | None]([None, None])
        if reverse:
            by_norm = torch.stack([of.sum(2) for of in sums], 1)  # steps, layers, 2
            of_rows, of_statistics = (list(of) for of in of_given(by_norm.movedim(2, 0), norms.movedim(2, 0)))
        gradients = of_actnorms(direction, loc, scale, of_affine.sum(1), classes * of_sums.sum())
        gradients += of_convolution(sizes, weight_gradients(of_hidden[0], summed.flatten(3)))
        for layer in range(layers):
            for of_row in of_rows:
                of_all = of_row.new_zeros(count, nodes)
                gradients.append(of_all.scatter_(1, is_row[:, None], of_row[:, layer, None]))
        for layer in range(layers):
            of_out = of_outputs if layer + 1 == layers else of_hidden[layer + 1]
            of_weight, of_bias = weight_gradients(of_out, inputs[layer]), of_out.sum((1, 2), dtype=torch.float32)
            if layer + 1 == layers:
                of_weight, of_bias = (
                    torch.cat([of[:, begin : begin + classes] for begin in (0, sizes.padded_classes)], 1)
                    for of in (of_weight, of_bias)
                )
            gradients += [of_weight, of_bias]
        return grad, None, None, *of_statistics, *(of_step for alike in gradients for of_step in alike.unbind())


def constants(sizes: Sizes, direction: Direction, adj: Tensor) -> dict[str, Any]:
    """Returns the constants of the kernels between two steps' layers."""
    return {
        "REVERSE": direction.reverse, "NODES": sizes.nodes, "CLASSES": sizes.classes, "KINDS": sizes.kinds,
        "CHANNELS": sizes.widths[0], "WIDTH": sizes.widths[-1], "PADDED_CLASSES": sizes.padded_classes,
        "PADDED_CHANNELS": padded(sizes.widths[0]), "PADDED_WIDTH": padded(sizes.widths[-1]), "SAMPLES": SAMPLES,
        "BLOCK": BLOCK, "FREE": Limit.FREE, "BOUND": Limit.BOUND, **products(adj), "num_warps": 4, "num_stages": 1,
    }  # fmt: skip


def affine(direction: Direction, by_place: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """Returns loc and scale [steps + 1, nodes] of y = scale (x + loc) before each convolution and behind the last.

    They are ActNorm's before a step, and those of its inverse behind it.
    """
    loc, scale = (torch.stack(list(alike)).flatten(1) for alike in by_place[:2])
    zeros, ones = torch.zeros_like(loc[:1]), torch.ones_like(scale[:1])
    if direction.reverse:
        return torch.cat([zeros, -loc * scale]), torch.cat([ones, 1 / scale])
    return torch.cat([loc, zeros]), torch.cat([scale, ones])


def of_actnorms(
    direction: Direction, loc: Tensor, scale: Tensor, of_affine: Float[Tensor, "places 2 nodes"], of_log: Tensor
) -> list[Tensor]:
    """Returns the gradients of ActNorm's loc and scale, from sums of the gradient of y times y and alone.

    Args:
        of_log: the gradient of log |scale|.
    """
    if direction.reverse:
        (products, alone), loc, scale = of_affine[1:].unbind(1), loc[1:], scale[1:]
        gradients = [-alone, (loc * alone * scale - products) * scale]
    else:
        (products, alone), scale = of_affine[:-1].unbind(1), scale[:-1]
        gradients = [scale * alone, (products + of_log) / scale]
    return [gradient[:, :, None] for gradient in gradients]


def of_given(
    sums: Float[Tensor, "2 *channels"], norm: Float[Tensor, "parts *channels"]
) -> tuple[Float[Tensor, "2 *channels"], Float[Tensor, "2 *channels"]]:
    """Returns gradients of BatchNorm's weight and bias, and of the mean and variance that were given to it.

    `sums` of the gradient g of its output, and of g (z - mean).
    """
    _, inverse, scale, *_ = norm
    of_weight = sums[1] * inverse
    return torch.stack([of_weight, sums[0]]), torch.stack([-scale * sums[0], -0.5 * scale * inverse * of_weight])
