"""All steps of the atom flow in training, as one differentiable function: three kernels a step forward, three backward.

What is sequential are a step's layers, as each BatchNorm needs sums over the batch. So a kernel begins with the sums of
the last one's programs and ends with its own, and nothing lies between two kernels. Between the last layer of a step
and the graph convolution of the next one there is no BatchNorm: both are one kernel, with the coupling, the
log-determinant and ActNorm. Weights' gradients of all steps are one product for each layer, at the end.

Without atomics, equal inputs give equal bits.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from src.gpu.triton_helpers import (
    ASSEMBLER,
    can_take_all,
    launch,
    power_of_2,
    reads_registers,
    working_dtype,
)
from src.models.moflow.actnorm import BATCH_NORM_EPS, BATCH_NORM_MOMENTUM, BatchNorm
from src.models.moflow.atom import AtomFlow, AtomStep
from src.models.moflow.fast import atom_backward_triton as backward_kernels
from src.models.moflow.fast import atom_triton as kernels
from src.models.moflow.fast import atom_weights
from src.models.moflow.fast.atom_weights import narrow_gradients, padded, products, weight_gradients
from src.models.moflow.fast.column_sums import column_sums

PROGRAMS = 264  # at most, of a kernel that goes through the samples: two for each multiprocessor of an H200, as it runs
HELD = 48 << 10  # bytes of the graph convolution's weights, at most, that a program holds
BLOCK = 64  # of the graph convolution's channels: what `between_backward` holds in registers at a time
WIDEST, WIDEST_LAST = 512, 128  # channels of the graph convolution and of the last layer, which a program holds whole
MOST_NODES, MOST_CLASSES, MOST_KINDS = 64, 31, 4


class FastAtomFlow(AtomFlow):
    """In training with float32 weights and the published log-determinant: all steps by the kernels of this module."""

    def forward(
        self, x: Float[Tensor, "batch nodes classes"], adj: Float[Tensor, "batch kinds nodes nodes"]
    ) -> tuple[Float[Tensor, "batch nodes classes"], Float[Tensor, " batch"]]:
        steps = [cast(AtomStep, step) for step in self.steps]
        if not self.training or not is_supported(steps, x, adj):
            return super().forward(x, adj)
        dtype = working_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            return Flow.apply(x, adj.to(dtype).contiguous(), steps, *parameters_of(steps))  # type: ignore[return-value]


def is_supported(steps: Sequence[AtomStep], x: Tensor, adj: Tensor, of_rows: bool = False) -> bool:
    """Returns whether the kernels take a training batch; `of_rows`: those of `row_flow`."""
    first, (batch, nodes, classes), weights = steps[0], x.shape, steps[0].actnorm.scale.dtype
    norm, widths = cast(BatchNorm, first.norms[0]), first.widths
    is_supported = {
        "logdet": (first.logdet, of_rows or first.logdet == "published"),
        "norm_batch": (norm.group, norm.group is None or batch <= norm.group),
        "kept_statistics": (True, of_rows or not (norm.keeps or norm.reuses)),
        "weights": (weights, adj.dtype == weights == torch.float32),
        "nodes": (nodes, nodes <= MOST_NODES),
        "kinds": (adj.shape[1], adj.shape[1] <= MOST_KINDS),
        "classes": (classes, classes <= MOST_CLASSES),
        "widths": (widths, widths[0] <= WIDEST and widths[-2] <= WIDEST_LAST),
        "ptxas": ("12.8", not x.is_cuda or ASSEMBLER in os.environ),  # it makes mistakes in `between`
        "batch": (batch, batch > 1 and batch * nodes * max(adj.shape[1] * nodes, *widths) < 2**31),
    }
    return can_take_all("atom_flow", x, is_supported)


def parameters_of(steps: Sequence[AtomStep]) -> list[Tensor]:
    """Returns the parameters by their place in a step, those of all steps for each."""
    return [tensor for alike in zip(*(step.parameters() for step in steps), strict=True) for tensor in alike]


class Sizes(NamedTuple):
    """The shapes of a flow in training."""

    steps: int
    batch: int
    nodes: int
    classes: int
    kinds: int
    widths: tuple[int, ...]  # of the graph convolution and of hidden layers

    @property
    def padded_classes(self) -> int:
        return max(16, power_of_2(self.classes + 1))

    @property
    def samples(self) -> int:
        """Samples of a program that goes through them."""
        return -(-self.batch // PROGRAMS)

    @property
    def programs(self) -> int:
        return -(-self.batch // self.samples)

    def holds(self, z: Tensor) -> bool:
        """Returns whether programs that go through the samples hold the graph convolution's weights.

        They do where two such programs run on a multiprocessor of a Hopper GPU.
        """
        size = (1 + self.kinds) * self.padded_classes * padded(self.widths[0]) * z.element_size()
        return z.element_size() == 2 and size <= HELD and reads_registers(z)

    def of_latents(self, z: Tensor) -> dict[str, Any]:
        """Returns the constants of the kernels that go through the samples."""
        return {
            "NODES": self.nodes, "CLASSES": self.classes, "KINDS": self.kinds, "CHANNELS": self.widths[0],
            "WIDTH": self.widths[-1], "PADDED_NODES": padded(self.nodes), "PADDED_CLASSES": self.padded_classes,
            "PADDED_CHANNELS": padded(self.widths[0]), "PADDED_WIDTH": padded(self.widths[-1]), "HOLDS": self.holds(z),
            **products(z), "num_warps": 4, "num_stages": 1,
        }  # fmt: skip


class Tile(NamedTuple):
    """What a program computes of a product, how much of the factors it loads at a time, and in how many stages."""

    rows: int
    columns: int
    depth: int
    stages: int

    def constants(self, z: Tensor, inputs: int, outputs: int) -> dict[str, Any]:
        return {"INPUTS": inputs, "OUTPUTS": outputs, "ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth,
                **products(z), "num_warps": 4, "num_stages": self.stages}  # fmt: skip


def tile_of(sizes: Sizes, inputs: int, outputs: int, dtype: torch.dtype) -> Tile:
    """Returns the tile of a layer's output, or of its input's gradient, whose rows are samples.

    In half precision the fastest of twelve on an H200, at 512 and at 3,584 samples.
    """
    narrow = dtype == torch.float32 or min(inputs, outputs) <= 64
    columns, depth = (64, 32 if dtype == torch.float32 else 64) if narrow else (128, 32)
    rows = min(64, padded(sizes.batch))
    return Tile(rows, min(columns, padded(outputs)), min(depth, padded(inputs)), 3 if narrow else 4)


def programs_of_node(sizes: Sizes, tile: Tile, outputs: int) -> int:
    """Returns how many programs store partial sums of a node."""
    return -(-sizes.batch // tile.rows) * -(-outputs // tile.columns)


def convolution_weights(
    sizes: Sizes, parameters: Sequence[Sequence[Tensor]], dtype: torch.dtype
) -> Float[Tensor, "steps relations classes channels"]:
    """Returns the graph convolutions' weights, with the bias in the row behind the classes and zeros behind it."""
    channels = sizes.widths[0]
    node, node_bias, edge, edge_bias = (torch.stack(list(alike)) for alike in parameters)
    out = node.new_zeros(sizes.steps, 1 + sizes.kinds, sizes.padded_classes, channels, dtype=dtype)
    out[:, 0, : sizes.classes] = node.transpose(1, 2)
    out[:, 0, sizes.classes] = node_bias
    out[:, 1:, : sizes.classes] = edge.unflatten(1, (channels, -1)).permute(0, 2, 3, 1)
    out[:, 1:, sizes.classes] = edge_bias.unflatten(1, (channels, -1)).transpose(1, 2)
    return out


def matrices(weights: Sequence[Tensor], dtype: torch.dtype) -> Float[Tensor, "steps outputs inputs"]:
    """Returns the weights of a layer of all steps in one tensor of the products' dtype."""
    out = weights[0].new_empty(len(weights), *weights[0].shape, dtype=dtype)
    torch._foreach_copy_(list(out), list(weights))  # pyright: ignore[reportPrivateImportUsage]
    return out


class Flow(torch.autograd.Function):
    """`parameters` are those of `parameters_of`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, adj: Tensor, steps: Sequence[AtomStep], *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        (batch, nodes, classes), dtype = x.shape, adj.dtype
        sizes = Sizes(len(steps), batch, nodes, classes, adj.shape[1], steps[0].widths[:-1])
        by_place = [parameters[i : i + len(steps)] for i in range(0, len(parameters), len(steps))]
        count, layers = len(steps), len(sizes.widths)
        convolution = convolution_weights(sizes, by_place[2:6], dtype)
        weights = [matrices(alike, dtype) for alike in by_place[6 + 2 * layers :: 2]]
        x = x.contiguous()
        new = adj.new_empty
        latents = x.new_empty(count + 1, *x.shape)  # behind each step's ActNorm, and the last step's output
        summed = new(count, nodes, batch, 1 + sizes.kinds, sizes.padded_classes)
        hidden = [new(count, nodes, batch, width) for width in sizes.widths]
        norms = x.new_empty(count, layers, 6, nodes)
        log_det = x.new_zeros(batch)
        partials, programs = x.new_empty(nodes, 3, sizes.programs), sizes.programs
        constants = sizes.of_latents(adj) | {"EPS": BATCH_NORM_EPS, "MOMENTUM": BATCH_NORM_MOMENTUM}
        tiles = [tile_of(sizes, *pair, dtype) for pair in zip(sizes.widths, sizes.widths[1:], strict=False)]
        for number in range(count + 1):
            couples, convolves = number > 0, number < count
            of, to = steps[max(number - 1, 0)], steps[min(number, count - 1)]
            new_partials = x.new_empty(nodes, 3, sizes.programs)
            last, after = max(number - 1, 0), min(number, count - 1)
            norm: Any = of.norms[-1]
            linear: Any = of.linears[-1]
            launch(
                kernels.between, (sizes.programs,),
                latents[number - 1] if couples else x, hidden[-1][last], partials, norm.weight, norm.bias,
                norm.running_mean, norm.running_var, norms[last, -1], weights[-1][last], linear.bias, log_det,
                to.actnorm.loc, to.actnorm.scale, adj, convolution[after], latents[number], summed[after],
                hidden[0][after], new_partials, batch, sizes.samples, programs, last % nodes, after % nodes,
                COUPLES=couples, CONVOLVES=convolves, PARTIALS=padded(programs) if couples else 16, **constants,
            )  # fmt: skip
            if not convolves:
                break
            partials, programs = new_partials, sizes.programs
            for layer, tile in enumerate(tiles):
                inputs, outputs = sizes.widths[layer : layer + 2]
                norm, linear = to.norms[layer], to.linears[layer]
                of_node = programs_of_node(sizes, tile, outputs)
                new_partials = x.new_empty(nodes, 3, of_node)
                launch(
                    kernels.layer, (nodes * of_node,),
                    hidden[layer][number], partials, norm.weight, norm.bias, norm.running_mean, norm.running_var,
                    norms[number, layer], weights[layer][number], linear.bias, hidden[layer + 1][number], new_partials,
                    batch, nodes, programs,
                    PARTIALS=padded(programs), EPS=BATCH_NORM_EPS, MOMENTUM=BATCH_NORM_MOMENTUM,
                    **tile.constants(adj, inputs, outputs),
                )  # fmt: skip
                partials, programs = new_partials, of_node
        scales = torch.stack(list(by_place[1]))
        log_det += classes * scales.abs().log().sum()
        ctx.sizes, ctx.steps = sizes, steps
        ctx.save_for_backward(adj, convolution, latents, summed, norms, scales, *hidden, *weights)
        return latents[count].clone(), log_det

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sizes, steps = cast(Sizes, ctx.sizes), ctx.steps
        adj, convolution, latents, summed, norms, scales, *rest = ctx.saved_tensors
        count, batch, nodes, classes, _, widths = sizes
        layers, wide = len(widths), 2 * sizes.padded_classes
        hidden, weights = rest[:layers], rest[layers:]
        new, zeros = adj.new_empty, latents.new_empty
        grad, of_log_det = grads[0].contiguous(), grads[1].contiguous()
        of_hidden = [torch.empty_like(z) for z in hidden]
        stores = [outputs > atom_weights.NARROW for outputs in (*widths[1:], wide)]  # whether a layer's input is stored
        inputs = [torch.empty_like(z) if is_stored else z for z, is_stored in zip(hidden, stores, strict=True)]
        of_outputs = new(count, nodes, batch, wide)
        g = [torch.empty_like(z[0]) for z in hidden]  # of each BatchNorm's output; each step overwrites the last one's
        of_norms, of_actnorms = zeros(count, layers, 2, nodes), zeros(count, sizes.programs, 2, nodes)
        latent_grads = [zeros(grad.shape) for _ in range(2)]
        partials, programs = zeros(nodes, 2, sizes.programs), sizes.programs
        constants = sizes.of_latents(adj)
        tiles = [tile_of(sizes, *pair, adj.dtype) for pair in zip(widths[1:], widths, strict=False)]
        for number in reversed(range(-1, count)):  # a coupling, and before it the next step's graph convolution
            couples, convolves = number >= 0, number + 1 < count
            last, after = max(number, 0), min(number + 1, count - 1)
            new_partials, out = zeros(nodes, 2, sizes.programs), latent_grads[number % 2]
            launch(
                backward_kernels.between_backward, (sizes.programs,),
                grad, of_log_det, g[0], hidden[0][after], partials, norms[after, 0], of_norms[after, 0], adj,
                convolution[after], steps[after].actnorm.scale, latents[after], of_actnorms[after], of_hidden[0][after],
                latents[last], hidden[-1][last], norms[last, -1], weights[-1][last], steps[last].linears[-1].bias,
                of_outputs[last], inputs[-1][last], g[-1] if layers > 1 or not convolves else new_g(g), new_partials,
                out, batch, sizes.samples, programs, last % nodes, after % nodes,
                COUPLES=couples, CONVOLVES=convolves, STORES=stores[-1],
                PARTIALS=padded(programs) if convolves else 16,
                BLOCK=min(BLOCK if sizes.holds(adj) else WIDEST, padded(widths[0])), **constants,
            )  # fmt: skip
            grad, partials, programs = out, new_partials, sizes.programs
            for layer, tile in reversed(list(enumerate(tiles))) if couples else ():
                of_node = programs_of_node(sizes, tile, widths[layer])
                new_partials = zeros(nodes, 2, of_node)
                launch(
                    backward_kernels.layer_backward, (nodes * of_node,),
                    g[layer + 1], hidden[layer + 1][number], partials, norms[number, layer + 1],
                    of_norms[number, layer + 1], weights[layer][number], hidden[layer][number], norms[number, layer],
                    of_hidden[layer + 1][number], inputs[layer][number], g[layer], new_partials, batch, nodes, programs,
                    STORES=stores[layer], PARTIALS=padded(programs), **tile.constants(adj, *widths[layer : layer + 2]),
                )  # fmt: skip
                partials, programs = new_partials, of_node
        of_actnorm = of_actnorms.sum(1)
        of_scale = (of_actnorm[:, 0] + classes * of_log_det.sum()) / scales.flatten(1)
        gradients = [(scales.flatten(1) * of_actnorm[:, 1]).view_as(scales), of_scale.view_as(scales)]
        gradients += of_convolution(sizes, weight_gradients(of_hidden[0], summed.flatten(3)))
        for layer in range(layers):
            gradients += [of_norms[:, layer, part].contiguous() for part in range(2)]
        for layer in range(layers):
            of_out = of_outputs if layer + 1 == layers else of_hidden[layer + 1]
            if stores[layer]:
                of_weight = weight_gradients(of_out, inputs[layer])
                of_bias = column_sums(of_out.flatten(1, 2)).sum(1)
            else:
                of_weight, of_bias = narrow_gradients(of_out, hidden[layer], norms[:, layer])
            if layer + 1 == layers:
                of_weight, of_bias = (
                    torch.cat([of[:, begin : begin + classes] for begin in (0, sizes.padded_classes)], 1)
                    for of in (of_weight, of_bias)
                )
            gradients += [of_weight, of_bias]
        return grad, None, None, *(of_step for alike in gradients for of_step in alike.unbind())


def new_g(g: list[Tensor]) -> Tensor:
    """Returns other memory for the gradient where the only layer's is still read."""
    g.append(torch.empty_like(g.pop()))
    return g[-1]


def of_convolution(sizes: Sizes, gradient: Float[Tensor, "steps channels columns"]) -> list[Tensor]:
    """Returns the gradients of a graph convolution's four parameters from that of its matrix."""
    by_relation = gradient.unflatten(2, (1 + sizes.kinds, -1))[..., : sizes.classes + 1]
    node, edge = by_relation[:, :, 0], by_relation[:, :, 1:].flatten(1, 2)
    return [
        part.contiguous() for relation in (node, edge) for part in (relation[..., : sizes.classes], relation[..., -1])
    ]
