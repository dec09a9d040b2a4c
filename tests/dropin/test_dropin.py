"""Graphs, degenerate edges, gradients, layouts and refusals of the networks in NVIDIA's place."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from src.dropin import graphs
from src.dropin.model import SE3Transformer, SE3TransformerPooled
from src.dropin.model.basis import get_basis
from src.dropin.model.fiber import Fiber, FiberEl
from src.dropin.model.layers import ConvSE3, LinearSE3, NormSE3
from src.dropin.runtime.utils import aggregate_residual, str2bool, unfuse_features
from src.errors import UserError
from tests.dropin.cases import ends, features, positions

IN, OUT, EDGE = Fiber({0: 6, 1: 3}), Fiber({0: 5, 1: 2}), Fiber({0: 4})
Result = dict[str, Tensor]


def network(degrees: int = 3, **arguments: Any) -> Any:
    torch.manual_seed(0)
    return SE3Transformer(1, IN, Fiber.create(degrees, 8), OUT, 4, 2, EDGE, **arguments).double()


def graph(rel_pos: Tensor, src: Tensor, dst: Tensor, nodes: int = 11) -> graphs.Graph:
    made = graphs.graph((src, dst), num_nodes=nodes)
    made.edata["rel_pos"] = rel_pos
    return made


def inputs(nodes: int = 11, edges: int = 47) -> tuple[Result, Result]:
    return features({0: 6, 1: 3}, nodes, 1), features({0: 4}, edges, 2)


def example() -> graphs.Graph:
    src, dst = ends()
    return graph(positions()[dst] - positions()[src], src, dst)


def close(first: Mapping[str, Tensor], second: Mapping[str, Tensor], atol: float = 1e-12) -> None:
    assert_close(dict(first), dict(second), rtol=0, atol=atol)


@pytest.mark.parametrize(
    "arguments", [{}, {"tensor_cores": True}, {"final_layer": "att"}, {"low_memory": True, "layout": "2022"}]
)
@pytest.mark.parametrize("rel_pos", ["some null", "all null", "none null"])
def test_edges_of_length_0_have_the_messages_of_the_given_basis(arguments: dict[str, Any], rel_pos: str) -> None:
    """The tables of a basis go the plain way, where such edges are nothing special."""
    model, made = network(**arguments), example()
    if rel_pos != "some null":
        made.edata["rel_pos"] = torch.full((47, 3), 0.0 if rel_pos == "all null" else 0.3, dtype=torch.float64)
    gradients = []
    for basis in (None, get_basis(made.edata["rel_pos"], 2)):
        nodes, edges = inputs()
        leaves = [x.requires_grad_() for x in (*nodes.values(), *edges.values())]
        out = model(made, nodes, edges, basis)
        total = torch.stack([x.square().sum() for x in out.values()]).sum()
        gradients.append([*out.values(), *torch.autograd.grad(total, [*leaves, *model.parameters()])])
    assert_close(*gradients, rtol=0, atol=1e-10)
    assert all(x.isfinite().all() for x in gradients[0])


def test_edges_may_come_in_any_order() -> None:
    model, made, order = network(), example(), torch.randperm(47, generator=torch.Generator().manual_seed(0))
    nodes, edges = inputs()
    src, dst = (x[order] for x in made.edges())
    close(
        model(graph(made.edata["rel_pos"][order], src, dst), nodes, {"0": edges["0"][order]}),
        model(made, nodes, edges),
    )


def test_a_convolution_without_pooling_keeps_the_order_of_edges() -> None:
    made, (nodes, edges) = example(), inputs()
    layer = ConvSE3(IN, OUT, EDGE, pool=False, max_degree=1).double()
    edges["0"] = torch.cat([edges["0"], made.edata["rel_pos"].norm(dim=1)[:, None, None]], 1)
    out = layer(nodes, edges, made)
    order = torch.randperm(47, generator=torch.Generator().manual_seed(0))
    src, dst = (x[order] for x in made.edges())
    other = layer(nodes, {"0": edges["0"][order]}, graph(made.edata["rel_pos"][order], src, dst))
    close(other, {name: x[order] for name, x in out.items()})
    block = network(1).graph_modules[0].to_key_value
    messages = block(nodes, edges, made)
    value, key = (block.outputs[i].num_features for i in (0, 1))
    assert {name: list(x.shape) for name, x in messages.items()} == {"0": [47, 8, 1]} and value == key == 4


def test_nodes_without_edges_and_graphs_without_edges() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    model, (nodes, edges) = network(), inputs(11, 0)
    out = model(graph(torch.zeros(0, 3, dtype=torch.float64), nothing, nothing), nodes, edges)
    assert not any(x.any() for x in out.values())
    out = model(example(), *inputs())
    assert not out["0"][10].any() and out["0"][:10].abs().sum(1).all()


def test_rotations() -> None:
    model, made, (nodes, edges) = network(), example(), inputs()
    rotation = o3.matrix_x(torch.tensor(0.4).double()) @ o3.matrix_y(torch.tensor(1.1).double())
    out = model(made, nodes, edges)
    made.edata["rel_pos"] = made.edata["rel_pos"] @ rotation.T
    turned = model(made, {"0": nodes["0"], "1": nodes["1"] @ rotation.T}, edges)
    close(turned, {"0": out["0"], "1": out["1"] @ rotation.T}, 1e-11)


def test_the_gradient_of_positions_is_through_lengths_or_full() -> None:
    made, (nodes, edges) = example(), inputs()
    full = network(full_gradient=True)
    apart = made.edata["rel_pos"] + torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)  # a length of 0 has no gradient

    def total(rel_pos: Tensor) -> Tensor:
        made.edata["rel_pos"] = rel_pos
        return full(made, nodes, edges)["0"].square().sum()

    assert torch.autograd.gradcheck(total, apart.clone().requires_grad_(), atol=1e-6)
    rel_pos = apart.clone().requires_grad_()
    made.edata["rel_pos"] = rel_pos
    (gradient,) = torch.autograd.grad(network()(made, nodes, edges)["0"].square().sum(), rel_pos)
    assert gradient.any()
    assert_close(torch.linalg.cross(gradient, rel_pos), torch.zeros_like(rel_pos), rtol=0, atol=1e-9)  # along the edge


def test_checkpointing_and_changed_weights_are_seen() -> None:
    model, made, (nodes, edges) = network(), example(), inputs()
    with torch.inference_mode():
        before = model(made, nodes, edges)
    plain = torch.autograd.grad(model(made, nodes, edges)["0"].sum(), list(model.parameters()), allow_unused=True)
    rerun = checkpoint(model, made, nodes, edges, use_reentrant=False)
    assert rerun is not None
    again = torch.autograd.grad(rerun["0"].sum(), list(model.parameters()), allow_unused=True)
    assert_close(plain, again, rtol=0, atol=0)
    with torch.no_grad():
        model.graph_modules[-1].to_kernel_self["0"].zero_()
        model.graph_modules[0].to_key_value.conv["0,0"].radial_func.net[-1].weight.add_(1)
    assert not torch.allclose(model(made, nodes, edges)["0"], before["0"])


def test_low_memory_recomputes_with_the_same_gradients() -> None:
    made, (nodes, edges), gradients = example(), inputs(), []
    for recomputes in (False, True):
        model = network(low_memory=True, layout="2022")
        for layer in (model.graph_modules[0], model.graph_modules[-1]):
            assert layer.low_memory
            layer.low_memory = recomputes
        gradients.append(
            torch.autograd.grad(model(made, nodes, edges)["0"].sum(), list(model.parameters()), allow_unused=True)
        )
    assert_close(*gradients, rtol=0, atol=0)


def test_a_batch_is_its_graphs() -> None:
    parts = [example(), graph(torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([1, 0]), 2)]
    joined = graphs.batch(parts)
    assert joined.batch_size == 2 and joined.batch_num_nodes().tolist() == [11, 2] and joined.num_edges() == 49
    given = [inputs(), inputs(2, 2)]
    both = [{name: torch.cat([part[i][name] for part in given]) for name in given[0][i]} for i in (0, 1)]
    model = network()
    apart = [model(part, *features) for part, features in zip(parts, given, strict=True)]
    close(model(joined, *both), {name: torch.cat([out[name] for out in apart]) for name in apart[0]})
    pooled = SE3TransformerPooled(IN, Fiber({0: 5}), EDGE, 2, 8, 1, num_layers=1, num_heads=2, channels_div=2).double()
    out = pooled(joined, *both)
    assert out.shape == (2,)
    assert_close(out[:1], pooled(parts[0], *given[0]), rtol=0, atol=1e-12)


def test_graphs_have_what_the_projects_use_of_dgl() -> None:
    made = graphs.graph(([0, 1, 1], [1, 0, 0]))
    assert made.num_nodes() == 2 and made.to("cpu") is made and made.in_degrees().tolist() == [2, 1]
    made.ndata["pos"], made.edata["w"] = torch.zeros(2, 3), torch.ones(3)
    moved = made.to("meta")
    assert moved.device.type == moved.edata["w"].device.type == moved.ndata["pos"].device.type == "meta"
    assert [x.tolist() for x in made.edges()] == [[0, 1, 1], [1, 0, 0]]


def test_fibers() -> None:
    fiber = Fiber({0: 8, 1: 3})
    assert list(fiber) == [FiberEl(1, 3), FiberEl(0, 8)] and fiber.degrees == [0, 1] and fiber.channels == [8, 3]
    assert (
        fiber[4] == 0 and fiber.num_features == 17 and fiber * 2 == Fiber({0: 16, 1: 6}) and fiber + 1 == {0: 9, 1: 4}
    )
    assert len(list(fiber * fiber)) == 4 and fiber + Fiber({1: 2}) == {0: 8, 1: 5}
    assert Fiber.combine_max(fiber, Fiber({1: 5, 2: 1})) == {0: 8, 1: 5, 2: 1}
    assert Fiber.from_features({"1": torch.zeros(4, 2, 3)}) == {1: 2} and repr(Fiber({})) == "[]"
    heads = fiber.to_attention_heads({"0": torch.zeros(5, 8, 1), "1": torch.zeros(5, 3, 3)}, 1)
    assert heads.shape == (5, 1, 17)


def test_utilities() -> None:
    assert {name: list(x.shape) for name, x in unfuse_features(torch.zeros(2, 3, 4), [0, 1]).items()} == {
        "0": [2, 3, 1],
        "1": [2, 3, 3],
    }
    one, two = {"0": torch.ones(1, 2, 1)}, {"0": torch.ones(1, 2, 1), "1": torch.ones(1, 1, 3)}
    assert (
        aggregate_residual(one, two, "add")["0"].sum() == 4 and aggregate_residual(one, two, "cat")["0"].shape[1] == 4
    )
    assert str2bool("yes") and not str2bool(False)


def test_the_state_dict_of_another_layout_is_named() -> None:
    weights = network(low_memory=True).state_dict()
    fused = network(tensor_cores=True, low_memory=False)
    why = r"graph_modules.2: the weights are of another layout: .*; give its tensor_cores, low_memory and layout"
    with pytest.raises(RuntimeError, match=why):
        network(low_memory=True, layout="2022").load_state_dict(weights)
    assert fused.load_state_dict(network(tensor_cores=True).state_dict(), strict=True)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: network(sum_over_edges=False), "SE3Transformer has no argument sum_over_edges"),
        (lambda: network(final_layer="linear"), "final_layer=linear is not allowed; expected one of conv, lin, att"),
        (lambda: network(populate_edge="sin"), "populate_edge=sin is not allowed"),
        (lambda: network(layout="2023"), "layout=2023 is not allowed; expected one of 2021, 2022"),
        (lambda: network(pooling="avg"), "pooling=avg needs return_type"),
        (lambda: network(pooling="max", return_type=1), "pooling=max of degree 1 would break the symmetry"),
        (lambda: network(return_type=2), "return_type=2 is not a degree"),
        (lambda: network(e3nn="0.7"), "e3nn=0.7: the signs"),
        (lambda: ConvSE3(IN, OUT, EDGE, allow_fused_output=True), "allow_fused_output=True is not supported"),
        (lambda: LinearSE3(IN, Fiber({2: 4})), "degree 2 of the output"),
        (lambda: NormSE3(IN, torch.nn.GELU()), "nonlinearity=GELU"),
        (lambda: network()(torch.zeros(3), *inputs()), "the graph is a Tensor; expected se3_transformer.graphs.graph"),
        (lambda: network()(example().to("meta"), *inputs()), "the graph is on meta and its features are on cpu"),
        (lambda: network()(graphs.graph(ends()), *inputs()), r"the graph has no edata\['rel_pos'\]"),
        (lambda: network()(example(), *inputs(12)), "the features have 12 rows; the graph has 11 nodes"),
        (lambda: network()(example(), inputs()[0]), r"edge_feats have shapes \{\} by degree"),
        (lambda: network()(example(), {"0": inputs()[0]["0"]}, inputs()[1]), "the features have shapes"),
        (lambda: network()(example(), inputs(11, 5)[0], inputs(11, 5)[1]), "5 edges"),
        (lambda: network()(example(), *inputs(), get_basis(torch.ones(47, 3), 1)), "the basis has no table '2,0'"),
        (lambda: network().to("meta")(example(), *inputs()), "and the network's weights are on meta"),
        (lambda: network()(graph(torch.ones(47, 3, device="meta"), *ends()), *inputs()), "and edata.* is on meta"),
        (lambda: network()(example(), {"a": inputs()[0]["0"]}, inputs()[1]), "node_feats is of the key 'a'; expected"),
        (lambda: SE3Transformer(1, IN, IN, OUT, 4, 0), "num_layers=1, channels_div=0; expected at least 0 and 1"),
        (lambda: Fiber({0: -1}), r"Fiber\(\{0: -1\}\) is not allowed; expected channels by degree"),
        (lambda: graphs.graph(([0], [3]), num_nodes=3), r"edges join nodes 0 \.\. 3, but the graph has nodes 0 \.\. 2"),
        (lambda: graphs.graph(([0.5], [1.0])), "expected integers"),
        (lambda: graphs.graph(([0, 1], [1])), "two vectors of one length"),
        (lambda: graphs.graph("ab3"), r"graph\(\(src, dst\), ...\) takes"),
        (lambda: graphs.batch([]), "a batch of no graphs"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(wrong: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        wrong()


@pytest.mark.parametrize("degrees", [2, 4])
def test_results_without_gradients_are_the_same(degrees: int) -> None:
    """Vectors are rotated otherwise then."""
    torch.manual_seed(0)
    fiber = Fiber.create(degrees, 16)
    model = SE3Transformer(1, IN, fiber, fiber, 4, 1, EDGE).double()
    made, (nodes, edges) = example(), inputs()
    expected = model(made, nodes, edges)
    with torch.no_grad():
        close(model(made, nodes, edges), {name: x.detach() for name, x in expected.items()})


def test_a_graph_of_dgl() -> None:
    dgl = pytest.importorskip("dgl")
    model, made, (nodes, edges) = network(), example(), inputs()
    other = dgl.graph(made.edges(), num_nodes=11)
    other.edata["rel_pos"] = made.edata["rel_pos"]
    close(model(other, nodes, edges), model(made, nodes, edges), 0)
