"""The convolution against a loop over edges, agreement of plain and fast ones, and sharing of radial networks."""

from typing import Any, NamedTuple

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.testing import assert_close

from src.batches.molecular_graphs import Graph
from src.gpu.replace import Kernels, replace_submodules
from src.models.se3_transformer import ConvSE3, Fiber, Geometry, fast
from src.models.se3_transformer.fast.conv import plans_of
from src.models.se3_transformer.fast.frames import EdgeLayout
from src.models.se3_transformer.fast.plan import Plan
from src.models.se3_transformer.radial import Group, Sharing, groups_of
from tests.support.se3_small import ByDegree, padded, random_features, random_graph, seeded

SCALARS = 3
EQUAL, UNEQUAL = Fiber.create(3, 4), Fiber({0: 4, 1: 2, 2: 3})


class Case(NamedTuple):
    fiber_in: Fiber
    fiber_out: Fiber
    arguments: dict[str, Any] = {}  # noqa: RUF012  (never changed)


CASES = {
    "full": Case(EQUAL, Fiber.create(3, 5)),
    "by output": Case(EQUAL, Fiber({0: 5, 2: 3})),
    "by input": Case(Fiber({0: 5}), EQUAL),
    "no two equal": Case(UNEQUAL, Fiber({0: 2, 1: 3})),
    "pairwise": Case(EQUAL, EQUAL, {"sharing": "pairwise"}),
    "scalars": Case(Fiber({0: 3}), Fiber({0: 4})),
    "higher output": Case(Fiber.create(2, 3), Fiber({0: 2, 3: 2})),
    "split": Case(EQUAL, EQUAL + EQUAL, {"split": (EQUAL, EQUAL)}),
    "uneven split": Case(Fiber({0: 6}), EQUAL + Fiber({0: 4}), {"split": (EQUAL, Fiber({0: 4}))}),
    "edge features": Case(EQUAL, EQUAL, {"edge_fiber": Fiber({1: 2, 2: 1})}),
    "equal edge features": Case(Fiber({0: 3, 1: 2}), Fiber.create(2, 2), {"edge_fiber": Fiber({1: 1})}),
    "own features": Case(UNEQUAL, Fiber({0: 3, 1: 2}), {"self_interaction": True, "use_layer_norm": True}),
    "own features of some": Case(Fiber({1: 3}), Fiber.create(3, 2), {"self_interaction": True}),
}
EVERY = pytest.mark.parametrize("name", list(CASES))


def convolution(case: Case, pool: bool = False, kernels: Kernels = "off") -> ConvSE3:
    torch.manual_seed(0)
    max_degree = max(case.fiber_in.max_degree, case.fiber_out.max_degree)
    conv = ConvSE3(case.fiber_in, case.fiber_out, SCALARS, max_degree, pool=pool, mid_channels=8, **case.arguments)
    replace_submodules(conv, fast.REPLACEMENTS, kernels)
    return conv.double()


def geometry_of(graph: Graph, case: Case) -> Geometry:
    scalars = torch.randn(len(graph.src), SCALARS, dtype=torch.float64, generator=seeded(5))
    return Geometry.of(graph, scalars, max(case.fiber_in.max_degree, case.fiber_out.max_degree))


def features_of(graph: Graph, case: Case) -> tuple[Tensor, ByDegree | None]:
    nodes = case.fiber_in.flatten(random_features(case.fiber_in, len(graph.positions)))
    if "edge_fiber" not in case.arguments:
        return nodes, None
    return nodes, random_features(case.arguments["edge_fiber"], len(graph.src), seed=2)


def message_of_edge(
    conv: ConvSE3, edge: int, graph: Graph, scalars: Tensor, nodes: ByDegree, ends: ByDegree
) -> ByDegree:
    """Returns one message from the formula: {degree: [channels, components]}."""
    rel_pos = graph.positions[graph.dst[edge]] - graph.positions[graph.src[edge]]
    inputs = torch.cat([scalars[edge], rel_pos.norm()[None]])
    source = {d: torch.cat([x[graph.src[edge]], *[ends[e][edge] for e in ends if e == d]]) for d, x in nodes.items()}
    message: ByDegree = {}
    for radial in conv.radial_groups():
        weights = iter(radial.weight @ radial.hidden(inputs))
        pairs = [(d_in, d_out) for d_out in radial.group.outputs for d_in in radial.group.inputs]
        for d_in, d_out in pairs:
            count = radial.group.outputs.channels(d_out)
            part = torch.zeros(count, 2 * d_out + 1, dtype=torch.float64)
            for j in range(abs(d_in - d_out), d_in + d_out + 1):
                harmonics = o3.spherical_harmonics(j, rel_pos, normalize=True, normalization="integral")
                w3j = o3.wigner_3j(j, d_in, d_out, dtype=torch.float64)
                kernel = torch.einsum("mio,m->oi", w3j, harmonics) if pairs != [(0, 0)] else torch.ones(1, 1).double()
                for feature in source[d_in]:
                    for channel in range(count):
                        part[channel] += next(weights) * (kernel @ feature)
            message[d_out] = message.get(d_out, 0) + part
    for degree, matrix in conv.to_self.items():
        message[int(degree)] = message[int(degree)] + matrix @ nodes[int(degree)][graph.dst[edge]]
    return message


def columns_of(message: ByDegree, outputs: tuple[Fiber, ...]) -> Tensor:
    """Returns one row: each output fiber flat, with its channels taken in order."""
    row, begin = [], dict.fromkeys(message, 0)
    for fiber in outputs:
        for degree, count in fiber.items():
            row.append(message[degree][begin[degree] : begin[degree] + count].T.flatten())
            begin[degree] += count
    return torch.cat(row)


@EVERY
def test_messages_equal_a_loop_over_edges(name: str) -> None:
    case, graph = CASES[name], random_graph((4, 2))
    conv, geometry = convolution(case), geometry_of(graph, case)
    nodes, ends = features_of(graph, case)
    by_degree, scalars = case.fiber_in.unflatten(nodes), geometry.radial_inputs[:, :SCALARS]
    with torch.no_grad():
        result = conv(nodes, geometry, ends)
        messages = [message_of_edge(conv, e, graph, scalars, by_degree, ends or {}) for e in range(len(graph.src))]
        expected = torch.stack([columns_of(message, conv.outputs) for message in messages])
    assert len(expected) > 2
    assert_close(result, expected, rtol=0, atol=1e-12)


@EVERY
@pytest.mark.parametrize("pool", [False, True])
def test_plain_and_fast_ones_agree_in_outputs_and_gradients(name: str, pool: bool) -> None:
    """With padding, which must not affect pooled sums."""
    case, graph = CASES[name], padded(random_graph(), nodes=2, edges=3, graphs=1)
    if pool and "split" in case.arguments:
        case = case._replace(arguments={})
    nodes, ends = features_of(graph, case)
    leaves = [nodes.requires_grad_(), *[feature.requires_grad_() for feature in (ends or {}).values()]]
    results = []
    for kernels in ("auto", "off"):
        conv = convolution(case, pool, kernels)
        output = conv(nodes, geometry_of(graph, case), ends)
        # Padded edges have length 0, where the two differ.
        output = output if pool else output[: graph.dst_ptr[-1]]
        results.append((output, torch.autograd.grad(output.square().sum(), [*leaves, *conv.parameters()])))
    assert_close(results[0], results[1], rtol=1e-11, atol=1e-11)
    if pool:
        is_padding = torch.arange(len(graph.positions)) >= graph.graph_ptr[-1]
        assert not results[0][0][is_padding].any() and not results[0][1][0][is_padding].any()


@EVERY
def test_pooling_sums_the_messages_at_their_destination(name: str) -> None:
    case, graph = CASES[name]._replace(arguments={**CASES[name].arguments, "split": None}), random_graph()
    nodes, ends = features_of(graph, case)
    messages, sums = (convolution(case, pool, "auto")(nodes, geometry_of(graph, case), ends) for pool in (False, True))
    expected = torch.stack([messages[graph.dst == node].sum(0) for node in range(len(graph.positions))])
    assert_close(sums, expected, rtol=0, atol=1e-11)


def test_every_incoming_edge_adds_the_nodes_own_features_once() -> None:
    case, graph = CASES["own features"], random_graph()
    conv = convolution(case, True, "auto")
    with torch.no_grad():
        for group in conv.radial_groups():
            group.weight.zero_()
    nodes, _ = features_of(graph, case)
    result = case.fiber_out.unflatten(conv(nodes, geometry_of(graph, case)))
    for degree, feature in case.fiber_in.unflatten(nodes).items():
        if degree in case.fiber_out:
            expected = conv.to_self[str(degree)] @ feature * graph.dst_ptr.diff()[:, None, None]
            assert_close(result[degree], expected, rtol=0, atol=1e-12)


def single(degree: int, channels: int = 4) -> Fiber:
    return Fiber({degree: channels})


@pytest.mark.parametrize(
    ("fiber_in", "fiber_out", "max_degree", "sharing", "expected"),
    [
        (EQUAL, EQUAL, 2, "full", [(EQUAL, EQUAL)]),
        (EQUAL, Fiber.create(3, 7), 2, "full", [(EQUAL, Fiber.create(3, 7))]),
        (EQUAL, EQUAL, 2, "pairwise", [(single(i), single(o)) for o in range(3) for i in range(3)]),
        (EQUAL, Fiber({0: 4, 2: 4}), 2, "full", [(EQUAL, single(0)), (EQUAL, single(2))]),
        (EQUAL, UNEQUAL, 2, "full", [(EQUAL, single(0)), (EQUAL, single(1, 2)), (EQUAL, single(2, 3))]),
        (Fiber({0: 6}), EQUAL, 2, "full", [(single(0, 6), EQUAL)]),
        (UNEQUAL, EQUAL, 2, "full", [(single(0), EQUAL), (single(1, 2), EQUAL), (single(2, 3), EQUAL)]),
        (Fiber({0: 2, 1: 3}), Fiber({0: 2, 1: 3}), 1, "full",
         [(single(i, 2 + i), single(o, 2 + o)) for o in range(2) for i in range(2)]),
        # A fiber is complete if it has all degrees of the network.
        (Fiber.create(2, 4), Fiber.create(2, 4), 2, "full",
         [(single(i), single(o)) for o in range(2) for i in range(2)]),
        (single(0), single(0), 0, "full", [(single(0), single(0))]),
    ],
)  # fmt: skip
def test_groups_follow_from_sharing_and_complete_fibers(
    fiber_in: Fiber, fiber_out: Fiber, max_degree: int, sharing: Sharing, expected: list[tuple[Fiber, Fiber]]
) -> None:
    assert groups_of(fiber_in, fiber_out, max_degree, sharing) == [Group(*fibers) for fibers in expected]


@pytest.mark.parametrize(
    ("name", "networks", "weights", "to_self"),
    [
        ("full", 1, (1 + 1 + 1 + 1 + 3 + 3 + 1 + 3 + 5) * 20, 0),
        ("by output", 2, 3 * 4 * 5 + (1 + 3 + 5) * 4 * 3, 0),
        ("by input", 1, 3 * 5 * 4, 0),
        ("no two equal", 6, (4 + 2 + 3) * 2 + (4 + 3 * 2 + 3 * 3) * 3, 0),
        ("pairwise", 9, 19 * 16, 0),
        ("scalars", 1, 12, 0),
        ("edge features", 3, (4 + 6 + 5) * 4 + (4 + 3 * 6 + 3 * 5) * 4 + (4 + 3 * 6 + 5 * 5) * 4, 0),
        ("equal edge features", 1, (1 + 1 + 1 + 3) * 3 * 2, 0),
        ("own features", 6, (4 + 2 + 3) * 3 + (4 + 3 * 2 + 3 * 3) * 2, 4 * 3 + 2 * 2),
        ("own features of some", 1, (1 + 3 + 3) * 3 * 2, 3 * 2),
    ],
)
def test_parameter_counts_follow_from_the_groups(name: str, networks: int, weights: int, to_self: int) -> None:
    case = CASES[name]
    hidden = (SCALARS + 1) * 8 + 8 + 8 * 8 + 8 + (2 * 2 * 8 if "use_layer_norm" in case.arguments else 0)
    conv = convolution(case)
    assert len(list(conv.radial_groups())) == networks
    assert sum(parameter.numel() for parameter in conv.parameters()) == networks * hidden + weights * 8 + to_self


@EVERY
def test_mixing_is_orthogonal_up_to_a_scale(name: str) -> None:
    """Terms of m > 0 count twice; groups of only (0, 0) are not scaled."""
    for plan in plans_of(convolution(CASES[name])):
        twice = torch.tensor([1 + (m > 0) for m, *_ in plan.terms()], dtype=torch.float64)
        scaled = plan.mixing * (twice.sqrt() * (1 if plan.group.is_scalar else (4 * torch.pi) ** 0.5))[:, None]
        assert_close(scaled @ scaled.T, torch.eye(len(twice), dtype=torch.float64), rtol=0, atol=1e-13)
        assert plan.mixing.shape[0] == plan.mixing.shape[1]


@EVERY
def test_blocks_partition_the_mixed_weights(name: str) -> None:
    for plan in plans_of(convolution(CASES[name])):
        mixed = plan.mix(torch.ones(plan.group.num_weights, 2, dtype=torch.float64))
        seen = torch.zeros(len(mixed) // 2)
        for block in plan.blocks:
            for begin in (block.weight_a, block.weight_b)[: 2 if block.m else 1]:
                seen[begin : begin + block.num_inputs * block.channels] += 1
        assert (seen == 1).all() and len(seen) == plan.group.num_weights


def test_weights_of_unequal_channels_are_mixed_pair_by_pair() -> None:
    """Against the mixing matrix, which cannot be applied at once here."""
    fiber = Fiber({0: 2, 1: 3})
    plan = Plan(Group(fiber, fiber), EdgeLayout(fiber, 1), (EdgeLayout(fiber, 1),))
    weight = torch.randn(plan.group.num_weights, 5, dtype=torch.float64, generator=seeded(0))
    sizes = {pair: plan.group.size(pair) for pair in plan.group.pairs()}
    blocks, offset = [], 0
    for pair, size in sizes.items():
        for _ in range(2 * min(pair) + 1):
            blocks.append((pair, weight[offset : offset + size]))
            offset += size
    expected = [
        sum(plan.mixing[row, i] * rows for i, (pair, rows) in enumerate(blocks) if pair == (d_in, d_out))
        for row, (_, _, d_out, d_in) in enumerate(plan.terms())
    ]
    assert_close(plan.mix(weight), torch.cat([torch.as_tensor(rows).flatten() for rows in expected]))
