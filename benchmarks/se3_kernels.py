"""Times the SE(3)-Transformer's kernels on an NVIDIA GPU: `python -m benchmarks.se3_kernels`.

`python -m benchmarks.se3_kernels tiles` times other tiles of a hidden layer's contraction in half precision.

Sizes are those of batches of 240 and 1,600 molecules of QM9 with their bonds; values are random. `backward` is the time
of forward and backward together minus forward. A multiply-add counts as 2 floating-point operations; backward has two
products for each of forward.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from src.batches.molecular_graphs import Graph
from src.measure.replay import device_ms
from src.models.se3_transformer.conv import ConvSE3
from src.models.se3_transformer.fast import contraction, linear, norm, radial
from src.models.se3_transformer.fast import edges as edge_kernels
from src.models.se3_transformer.fast.conv import plans_of
from src.models.se3_transformer.fast.frames import edge_rotations, wigner
from src.models.se3_transformer.fast.plan import Plan
from src.models.se3_transformer.fiber import Fiber

HIDDEN, VALUE = Fiber.create(4, 32), Fiber.create(4, 16)  # published: hidden features; values and keys
MID, HEADS = 32, 8
SIZES = {240: (4_352, 8_960), 1600: (28_800, 59_648)}  # padded nodes and edges by number of molecules

Tiles = contraction.Tiles
TILES = {  # whose machine code spills no registers; the first are those of training
    "forward": (contraction.HALF["forward"], Tiles(128, 2, 4, 3), Tiles(128, 2, 8, 3), Tiles(256, 2, 16, 3)),
    "data": (contraction.HALF["data"], Tiles(128, 2, 8, 2), Tiles(128, 4, 8, 2), Tiles(64, 2, 4, 3)),
    "weight": (contraction.HALF["weight"], Tiles(64, 8, 8, 3), Tiles(64, 8, 8, 4), Tiles(64, 4, 4, 4)),
}  # fmt: skip


def main() -> None:
    """Prints one line for each kernel, precision and size."""
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | numbers | edges | forward ms | backward ms | TFLOP/s forward | backward |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for nodes, edges in SIZES.values():
        graph = rings(nodes, edges)
        for dtype in (torch.float16, torch.float32):
            for name, function, inputs, flops in kernels(graph, dtype):
                forward, both = timed(function, inputs)
                backward = both - forward
                rates = [f"{work / ms / 1e9:.0f}" for work, ms in ((flops, forward), (2 * flops, backward)) if work]
                numbers = "half" if dtype == torch.float16 else "TF32"
                cells = [name, numbers, str(edges), f"{forward:.3f}", f"{backward:.3f}", *(rates or ["", ""])]
                print(f"| {' | '.join(cells)} |", flush=True)


def time_tiles() -> None:
    """Prints ms, TFLOP/s as in `main` and the largest difference from the first tiles for each tile and size."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | tiles | edges | ms | TFLOP/s | difference |\n|---|---|---:|---:|---:|---:|")
    for nodes, edges in SIZES.values():
        _, function, (h, x, w), products = kernels(rings(nodes, edges), torch.float16)[0]
        plan = plans_of(hidden_layer())[0]
        g, both = torch.randn_like(function(h, x, w)), contraction.signed(w, torch.float16)
        calls: dict[str, Callable[[], Tensor]] = {
            "forward": lambda: function(h, x, w),  # noqa: B023 (called in this round)
            "data": lambda: contraction.backward_data(h, x, both, g, plan)[1],  # noqa: B023
            "weight": lambda: contraction.backward_weight(h, x, g, plan, len(w)).sum(0),  # noqa: B023
        }
        for name, call in calls.items():
            expected = call().float()
            for tiles in TILES[name]:
                contraction.HALF[name] = tiles
                difference = (call().float() - expected).abs().max() / expected.abs().max()
                ms = device_ms(call)
                cells = [name, str(tiles), str(edges), f"{ms:.3f}", f"{products / ms / 1e9:.0f}", f"{difference:.1e}"]
                print(f"| {' | '.join(cells)} |", flush=True)
            contraction.HALF[name] = TILES[name][0]


def rings(nodes: int, edges: int) -> Graph:
    """Returns a graph that joins every node to the next ones in a ring, with random positions."""
    src = torch.arange(edges) % nodes
    dst = (src + 1 + torch.arange(edges) // nodes) % nodes
    graph = Graph.build(torch.randn(nodes, 3), src, dst, [nodes])
    return Graph(*(tensor.cuda() for tensor in graph[:7]), distinct=True)


Kernel = tuple[str, Callable[..., Tensor], Sequence[Tensor], float]


def kernels(graph: Graph, dtype: torch.dtype) -> list[Kernel]:
    """Name, function, inputs and floating-point operations (0 if not a matrix product) of each kernel of a layer."""
    layer = hidden_layer()
    plan, group = plans_of(layer)[0], layer.groups[0]
    edges, nodes = len(graph.src), len(graph.positions)
    products = 2 * multiply_adds(plan) * edges
    turns = wigner(edge_rotations(graph.positions[graph.dst] - graph.positions[graph.src]), 3).to(dtype)
    weights = plan.mix(group.weight.detach())
    value, key = plan.outputs

    def random(*shape: int, as_dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=as_dtype)

    features = random(nodes, HIDDEN.num_features)
    affine = [random(128, as_dtype=torch.float32) for _ in range(2)]
    return [
        ("contraction", lambda h, x, w: contraction.contract(h, x, w, plan),
         [random(edges, MID).relu(), random(edges, plan.source.num_features), weights], products),
        ("to edges", lambda x: edge_kernels.gather_to_edges(x, turns, graph, plan.source)[0], [features], 0),
        ("attention", lambda m, q: edge_kernels.attend(m, q, turns, graph, value, key, HEADS),
         [random(edges, plan.num_columns), random(nodes, VALUE.num_features)], 0),
        ("norm", lambda x, w, b: norm.norm(x, w, b, HIDDEN, 2.0**-24, 1e-5), [features, *affine], 0),
        ("linear", lambda w, x: linear.linear((x,), w)[0], [random(4, 32, 32, as_dtype=torch.float32), features],
         2 * 16 * 32 * 32 * nodes),
        ("radial", lambda x, *_: radial.hidden(x, group.hidden),
         [random(edges, 5, as_dtype=torch.float32), *group.hidden.parameters()], 0),
    ]  # fmt: skip


def hidden_layer() -> Any:
    return ConvSE3(HIDDEN, HIDDEN, 4, 3, split=(VALUE, VALUE), use_layer_norm=True).cuda()


def multiply_adds(plan: Plan) -> int:
    """Multiply-adds of one edge: every mixed weight multiplies the components m and -m of its inputs."""
    sizes = ((m, plan.group.size((d_in, d_out))) for m, _, d_out, d_in in plan.terms())
    return MID * sum(size * (2 if m else 1) for m, size in sizes)


def timed(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward together."""
    leaves = [tensor.detach().requires_grad_() if not tensor.is_leaf else tensor.requires_grad_() for tensor in inputs]
    with torch.no_grad():
        forward = device_ms(lambda: function(*leaves))
        gradient = torch.randn_like(function(*leaves))
    return forward, device_ms(lambda: torch.autograd.grad(function(*leaves), leaves, gradient))


if __name__ == "__main__":
    time_tiles() if sys.argv[1:] == ["tiles"] else main()
