"""Differences of the SE(3)-Transformer's fused kernels from plain torch in float64, on a CPU (interpreted) or GPU."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from src.batches.molecular_graphs import Graph
from src.models.se3_transformer.attention import attend
from src.models.se3_transformer.conv import ConvSE3, sum_incoming
from src.models.se3_transformer.fast.conv import plans_of
from src.models.se3_transformer.fast.frames import EdgeLayout, edge_rotations, wigner
from src.models.se3_transformer.fast.plan import Plan
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.linear import multiply
from src.models.se3_transformer.norm import normalised
from src.models.se3_transformer.radial import Group, RadialGroup
from tests.support.kernel_differences import Difference, difference, random

EPS = 1e-5


def ragged(sizes: Sequence[int], pad: tuple[int, int] = (0, 0), dense: bool = False, device: str = "cpu") -> Graph:
    """Returns molecules and padding. `dense`: with all edges; else half of them, and first atoms without edges."""
    generator = torch.Generator().manual_seed(0)
    nodes, begin, src, dst = sum(sizes), 0, [], []
    for size in sizes:
        ends = (torch.rand(size, size, generator=generator) < (1.0 if dense else 0.5)).fill_diagonal_(False)
        if not dense:
            ends[0] = ends[:, 0] = False
        edges = ends.nonzero() + begin
        src, dst, begin = [*src, edges[:, 0]], [*dst, edges[:, 1]], begin + size
    graph = Graph.build(random(nodes, 3, seed=0), torch.cat(src), torch.cat(dst), sizes)
    more_nodes, more_edges = pad
    ends, total = torch.full((more_edges,), nodes + more_nodes - 1), len(graph.src)
    whole = Graph(
        positions=torch.cat([graph.positions, graph.positions.new_zeros(more_nodes, 3)]),
        src=torch.cat([graph.src, ends]),
        dst=torch.cat([graph.dst, ends]),
        dst_ptr=torch.cat([graph.dst_ptr, graph.dst_ptr[-1:].expand(more_nodes)]),
        src_order=torch.cat([graph.src_order, torch.arange(total, total + more_edges)]),
        src_ptr=torch.cat([graph.src_ptr, graph.src_ptr[-1:].expand(more_nodes)]),
        graph_ptr=graph.graph_ptr,
        distinct=True,
    )
    return Graph(*(tensor.to(device) for tensor in whole[:7]), distinct=True)


def packed(graph: Graph, max_degree: int) -> Tensor:
    return wigner(edge_rotations(graph.positions[graph.dst] - graph.positions[graph.src]), max_degree)


def contraction(fused: Any, plan: Plan, edges: int, mid: int, dtype: torch.dtype, device: str = "cpu") -> Difference:
    """Compares outputs and gradients of hidden layer, columns and mixed weights (float32, as in the network)."""
    assert fused.contraction.supported(plan, mid)
    size = sum(plan.group.size((d_in, d_out)) for _, _, d_out, d_in in plan.terms())
    inputs = [
        random(edges, mid, seed=1).to(device, torch.float32),
        random(edges, plan.source.num_features, seed=2).to(device, dtype),
        # Rounded as in the kernel, so that only products and sums are compared.
        (0.2 * random(size * mid, seed=3)).to(device, dtype).float(),
    ]
    inputs[0] = inputs[0].to(dtype).float()
    return difference(
        lambda h, x, w: fused.contraction.contract(h, x, w, plan),
        lambda h, x, w: plan.contract(h, x, w),
        inputs,
    )


def plan_of(inputs: Fiber, *outputs: Fiber) -> Plan:
    """Returns the plan of a convolution's first group, which has all degrees if channels are equal."""
    total = sum(outputs[1:], outputs[0])
    return plans_of(ConvSE3(inputs, total, 1, max(inputs.max_degree, total.max_degree), split=outputs))[0]


def gathering(fused: Any, layout: EdgeLayout, graph: Graph, dtype: torch.dtype) -> Difference:
    matrices, device = packed(graph, layout.fiber.max_degree), graph.positions.device.type
    features = random(len(graph.positions), layout.fiber.num_features, seed=4, device=device).to(dtype)
    real = (torch.arange(len(graph.src), device=device) < graph.dst_ptr[-1])[:, None]
    matrices = matrices.to(dtype)
    return difference(
        lambda x: fused.edges.gather_to_edges(x, matrices, graph, layout)[0],
        lambda x: layout.to_edge(x[graph.src], matrices.double()) * real,
        [features],
    )


def summing(fused: Any, layout: EdgeLayout, graph: Graph, dtype: torch.dtype) -> Difference:
    matrices, device = packed(graph, layout.fiber.max_degree).to(dtype), graph.positions.device.type
    columns = random(len(graph.src), layout.num_features, seed=5, device=device).to(dtype)
    return difference(
        lambda x: fused.edges.sum_from_edges(x, matrices, graph, layout),
        lambda x: sum_incoming(layout.from_edge(x, matrices.double()), graph),
        [columns],
    )


def attention(
    fused: Any, value: EdgeLayout, key: EdgeLayout, heads: int, graph: Graph, dtype: torch.dtype
) -> Difference:
    assert fused.edges.attention_supported(value, key, heads)
    matrices, device = packed(graph, value.fiber.max_degree).to(dtype), graph.positions.device.type
    messages = random(len(graph.src), value.num_features + key.num_features, seed=6, device=device).to(dtype)
    query = random(len(graph.positions), key.fiber.num_features, seed=7, device=device).to(dtype)

    def plain(messages: Tensor, query: Tensor) -> Tensor:
        values, keys = messages.split([value.num_features, key.num_features], 1)
        values, keys = value.from_edge(values, matrices.double()), key.from_edge(keys, matrices.double())
        return attend(values, keys, query, graph, heads, value.fiber, key.fiber)

    return difference(
        lambda m, q: fused.edges.attend(m, q, matrices, graph, value, key, heads), plain, [messages, query]
    )


def normalising(
    fused: Any, fiber: Fiber, nodes: int, dtype: torch.dtype, device: str = "cpu", smallest: float = 2.0**-24
) -> Difference:
    """Compares outputs and gradients of features, weight and bias."""
    assert fused.norm.supported(fiber)
    count = sum(channels for _, channels in fiber.items())
    features = random(nodes, fiber.num_features, seed=8, device=device)
    affine = [0.5 + random(count, seed=seed, device=device).float() for seed in (9, 10)]
    return difference(
        lambda x, w, b: fused.norm.norm(x, w, b, fiber, smallest, EPS),
        lambda x, w, b: normalised(x, w, b, fiber, smallest, EPS),
        [features.to(dtype), *affine],
    )


def multiplying(
    fused: Any, degrees: int, inner: tuple[int, ...], outer: int, nodes: int, dtype: torch.dtype, device: str = "cpu"
) -> Difference:
    """Compares outputs and gradients of the matrices and of one or two inputs."""
    assert fused.linear.supported(inner, outer)
    weights = random(degrees, outer, sum(inner), seed=11, device=device).to(dtype).float()
    inputs = [random(nodes, degrees**2 * c, seed=12 + c, device=device).to(dtype) for c in inner]
    fiber = Fiber.create(degrees, outer)
    return difference(
        lambda w, *x: fused.linear.linear(x, w)[0], lambda w, *x: multiply(x, w, fiber), [weights, *inputs]
    )


def hidden_layer(
    fused: Any, scalars: int, mid: int, norm: bool, edges: int, wants_inputs: bool, device: str = "cpu"
) -> Difference:
    """Compares outputs and gradients of all parameters and, with `wants_inputs`, of the inputs."""
    fiber = Fiber({0: 1})
    torch.manual_seed(0)
    exact = RadialGroup(Group(fiber, fiber), scalars, mid, norm).hidden.double().to(device)
    with torch.no_grad():
        for seed, parameter in enumerate(exact.parameters()):
            parameter.add_(0.3 * random(*parameter.shape, seed=seed, device=device))
    assert fused.radial.supported(exact)
    names = [name for name, _ in exact.named_parameters()]
    inputs = [random(edges, scalars, seed=20, device=device).float()]
    parameters = [parameter.detach().float() for parameter in exact.parameters()]

    def with_parameters(network: Callable[[Tensor, nn.Sequential], Tensor]) -> Callable[..., Tensor]:
        def function(*tensors: Tensor) -> Tensor:
            values = dict(zip(names, tensors[-len(names) :], strict=True))
            x = tensors[0] if wants_inputs else inputs[0].to(tensors[0])
            return torch.func.functional_call(
                Called(exact, network), {f"inner.{n}": v for n, v in values.items()}, (x,)
            )

        return function

    return difference(
        with_parameters(fused.radial.hidden),
        with_parameters(lambda x, network: network(x)),
        [*(inputs if wants_inputs else []), *parameters],
    )


class Called(nn.Module):
    """A function of a network as a module, so that `functional_call` can replace the network's parameters."""

    def __init__(self, inner: nn.Sequential, function: Callable[[Tensor, nn.Sequential], Tensor]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.inner)
