"""NVIDIA's checkpoints: predictions of the converted network, keys, and conversion in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.func import functional_call
from torch.testing import assert_close

from src.errors import UserError
from src.models.se3_transformer import (
    Fiber,
    SE3Transformer,
    SE3TransformerPooled,
    from_nvidia,
    load_nvidia,
    to_nvidia,
)
from src.models.se3_transformer.checkpoint import FUSES, Fuse
from tests.support import se3_literal as literal
from tests.support import se3_symbols as symbols
from tests.support.se3_small import random_features, random_graph, seeded

SMALL: dict[str, Any] = {"num_layers": 2, "num_degrees": 3, "num_channels": 8, "num_heads": 2}
NODES, EDGES = Fiber({0: 6}), Fiber({0: 4})


def small_network(**arguments: Any) -> SE3TransformerPooled:
    torch.manual_seed(0)
    network = SE3TransformerPooled(**(SMALL | arguments)).double()
    for parameter in network.parameters():  # layer norms are initialised to ones and zeros
        parameter.data += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return network


def random_like(nvidia: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = seeded(2)
    return {k: 0.5 * torch.randn(v.shape, dtype=torch.float64, generator=generator) for k, v in nvidia.items()}


def test_the_table_of_symbols_is_complete_and_differs_only_in_signs() -> None:
    degrees = range(symbols.MAX_DEGREE + 1)
    triples = {(j, i, o) for i in degrees for o in degrees for j in range(abs(i - o), i + o + 1)}
    assert symbols.table().keys() == triples
    for triple in triples:
        index, value = symbols.table()[triple]
        now = symbols.installed(*triple)
        assert_close(abs(value), now[index].abs().item(), rtol=1e-12, atol=0)
        assert_close(abs(value), now.abs().max().item(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_degrees", range(2, 7))
@pytest.mark.slow
def test_from_nvidia_accounts_for_the_symbols_of_e3nn_0_3_3(num_degrees: int) -> None:
    """Compares the prediction and its gradients; those of NVIDIA's weights go through the conversion."""
    network = small_network(num_degrees=num_degrees, num_channels=4)
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    nvidia = {key: value.requires_grad_() for key, value in random_like(to_nvidia(network)).items()}
    graph = graph._replace(positions=graph.positions.requires_grad_())
    leaves = [graph.positions, *nvidia.values()]
    result = functional_call(network, from_nvidia(nvidia, network), (graph, nodes, edges))
    expected = literal.predict(nvidia, graph, nodes, edges, num_heads=2, channels_out=4 * num_degrees)
    assert expected.std() > 1e-3
    assert_close(result, expected, rtol=1e-9, atol=1e-10)
    gradients = (torch.autograd.grad(value.square().sum(), leaves) for value in (result, expected))
    assert_close(*gradients, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("num_degrees", range(2, 7))
@pytest.mark.slow
def test_to_nvidia_accounts_for_the_symbols_of_e3nn_0_3_3(num_degrees: int) -> None:
    """Compares the prediction, its gradient by positions, and its derivative along a change of both weights."""
    network, change = (small_network(num_degrees=num_degrees, num_channels=4) for _ in range(2))
    for parameter in [*network.parameters(), *change.parameters()]:
        parameter.data = 0.5 * torch.randn(parameter.shape, dtype=torch.float64)
    nvidia = {key: value.clone().requires_grad_() for key, value in to_nvidia(network).items()}
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    graph = graph._replace(positions=graph.positions.requires_grad_())
    result = network(graph, nodes, edges)
    expected = literal.predict(nvidia, graph, nodes, edges, num_heads=2, channels_out=4 * num_degrees)
    assert expected.std() > 1e-3
    assert_close(result, expected, rtol=1e-9, atol=1e-10)
    along = []
    for value, weights, changes in (
        (result, dict(network.named_parameters()), dict(change.named_parameters())),
        (expected, nvidia, to_nvidia(change)),
    ):
        by_positions, *by_weights = torch.autograd.grad(value.square().sum(), [graph.positions, *weights.values()])
        pairs = zip(weights, by_weights, strict=True)
        along.append((by_positions, sum((gradient * changes[key]).sum() for key, gradient in pairs)))
    assert_close(*along, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("e3nn", "version_symbols"),
    [("0.4.4", symbols.of_e3nn_0_3_3), ("0.5.0", symbols.installed), ("0.6.0", symbols.installed)],
)
def test_symbols_are_those_of_the_given_version(e3nn: str, version_symbols: symbols.Symbols, tmp_path: Path) -> None:
    network, path = small_network(), tmp_path / "model.pth"
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    nvidia = to_nvidia(network, e3nn=e3nn)
    result = network(graph, nodes, edges)
    expected = literal.predict(nvidia, graph, nodes, edges, num_heads=2, channels_out=24, symbols=version_symbols)
    assert_close(result, expected, rtol=1e-9, atol=1e-10)
    torch.save({"state_dict": nvidia}, path)
    for parameter in network.parameters():
        parameter.data.zero_()
    load_nvidia(path, network, e3nn=e3nn)
    assert_close(network(graph, nodes, edges), result, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("e3nn", ["0.2.9", "0.7.0", "0", "latest"])
def test_versions_with_unknown_symbols_are_refused(e3nn: str) -> None:
    network = small_network()
    for convert in (lambda: to_nvidia(network, e3nn=e3nn), lambda: from_nvidia(to_nvidia(network), network, e3nn)):
        with pytest.raises(UserError, match=rf"^e3nn={e3nn}: .* 0\.3 to 0\.6; give .* 0\.3\.3"):
            convert()


def test_degrees_without_symbols_in_e3nn_0_3_3_are_refused() -> None:
    network = small_network(num_degrees=7, num_channels=4)
    with pytest.raises(UserError, match=r"e3nn=0\.3\.3 has no .* degree 6, .* degree 5; give e3nn=0\.5\.0"):
        to_nvidia(network)
    assert_close(from_nvidia(to_nvidia(network, e3nn="0.5.0"), network, "0.5.0"), dict(network.state_dict()))


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("num_degrees", [1, 3])
@pytest.mark.parametrize("fuse", FUSES)
def test_nvidias_formula_gives_our_prediction(fuse: Fuse, num_degrees: int, norms: bool) -> None:
    template = small_network(num_degrees=num_degrees, norm=norms, use_layer_norm=norms)
    network = small_network(num_degrees=num_degrees, norm=norms, use_layer_norm=norms, sharing="pairwise")
    nvidia = random_like(to_nvidia(template, fuse))
    network.load_state_dict(from_nvidia(nvidia, network))
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    expected = literal.predict(nvidia, graph, nodes, edges, num_heads=2, channels_out=8 * num_degrees)
    assert expected.std() > 1e-3
    assert_close(network(graph, nodes, edges), expected, rtol=1e-9, atol=1e-10)
    if fuse == "full":
        template.load_state_dict(from_nvidia(nvidia, template))
        assert_close(template(graph, nodes, edges), expected, rtol=1e-9, atol=1e-10)


CONVOLUTIONS = {
    "conv": (Fiber.create(3, 2), Fiber.create(3, 5)),
    "conv_out": (Fiber.create(3, 2), Fiber({0: 3, 2: 4})),
    "conv_in": (Fiber({0: 3, 2: 4}), Fiber.create(3, 5)),
    "conv.2,0": (Fiber({0: 3, 2: 4}), Fiber({0: 3, 1: 2})),
}


@pytest.mark.parametrize("edge_fiber", [Fiber({0: 2}), Fiber({0: 2, 2: 1})])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_nvidias_convolutions_equal_ours(name: str, edge_fiber: Fiber) -> None:
    fiber_in, fiber_out = CONVOLUTIONS[name]
    torch.manual_seed(1)
    hidden = Fiber.create(3, 2)
    network = SE3Transformer(fiber_in, fiber_out, hidden, edge_fiber, num_layers=0).double()
    nvidia = to_nvidia(network)
    assert_close(from_nvidia(nvidia, network), dict(network.state_dict()))
    graph = random_graph()
    nodes, edges = random_features(fiber_in, len(graph.positions)), random_features(edge_fiber, len(graph.src))
    state = literal.below(nvidia, "graph_modules.0.")
    if edge_fiber == Fiber({0: 2}):
        assert any(key.startswith(f"{name}.") for key in state)
    messages = literal.conv(state, nodes, edges, graph, dict(fiber_out.items()))
    expected = {d: x.new_zeros(len(nodes[0]), *x.shape[1:]).index_add(0, graph.dst, x) for d, x in messages.items()}
    assert_close(network(graph, nodes, edges), dict(sorted(expected.items())), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("fuse", FUSES)
def test_weights_are_the_same_after_to_nvidia_and_from_nvidia(fuse: Fuse, norm: bool) -> None:
    network = small_network(norm=norm)
    assert_close(from_nvidia(to_nvidia(network, fuse), network), dict(network.state_dict()), rtol=1e-15, atol=0)


def test_unequal_channels_have_a_layer_norm_per_degree() -> None:
    network = SE3Transformer(Fiber({0: 3}), Fiber({0: 2}), Fiber({0: 4, 1: 8}), num_layers=1, num_heads=2)
    nvidia = to_nvidia(network)
    shapes = {key: tuple(value.shape) for key, value in nvidia.items() if key.startswith("graph_modules.1.")}
    assert shapes == {
        f"graph_modules.1.layer_norms.{d}.{n}": (c,) for n in ("weight", "bias") for d, c in ((0, 4), (1, 8))
    }
    assert_close(from_nvidia(nvidia, network), dict(network.state_dict()))


@pytest.mark.parametrize(
    ("fuse", "modules"),
    [
        ("full", {"conv"}),
        ("partial", {"conv_out.0", "conv_out.1"}),
        ("none", {"conv.0,0", "conv.0,1", "conv.1,0", "conv.1,1"}),
    ],
)
def test_the_last_convolution_is_fused_like_the_others(fuse: Fuse, modules: set[str]) -> None:
    fiber = Fiber.create(2, 4)
    network = SE3Transformer(fiber, fiber, fiber, num_layers=1, num_heads=2)
    nvidia = to_nvidia(network, fuse)
    for prefix in ("graph_modules.0.to_key_value.", "graph_modules.2."):
        names = {key.split(".radial_func")[0] for key in literal.below(nvidia, prefix) if ".radial_func" in key}
        assert names == modules
    assert_close(from_nvidia(nvidia, network), dict(network.state_dict()))


def test_weights_of_low_memory_are_the_same_after_both_conversions() -> None:
    network = small_network(sharing="pairwise")
    nvidia = random_like(to_nvidia(network, "none"))
    network.load_state_dict(from_nvidia(nvidia, network))
    assert_close(to_nvidia(network, "none"), nvidia, rtol=1e-15, atol=0)


def test_a_low_memory_network_from_before_september_2022_is_read() -> None:
    """NVIDIA's last convolution was then fused at every level."""
    template, network = small_network(), small_network(sharing="pairwise")
    last = "transformer.graph_modules.4."
    nvidia = {key: value for key, value in to_nvidia(template, "none").items() if not key.startswith(last)}
    nvidia |= {key: value for key, value in to_nvidia(template, "full").items() if key.startswith(last)}
    assert f"{last}conv_out.0.radial_func.net.6.weight" in nvidia
    nvidia = random_like(nvidia)
    network.load_state_dict(from_nvidia(nvidia, network))
    graph = random_graph()
    nodes, edges = random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))
    expected = literal.predict(nvidia, graph, nodes, edges, num_heads=2, channels_out=24)
    assert_close(network(graph, nodes, edges), expected, rtol=1e-9, atol=1e-10)


def test_keys_and_sizes_are_those_of_the_published_model() -> None:
    """Sizes were counted in NVIDIA's networks with tensor cores, without, and with low_memory."""
    network = SE3TransformerPooled()
    sizes = {fuse: sum(value.numel() for value in to_nvidia(network, fuse).values()) for fuse in FUSES}
    assert sizes == {"full": 9_279_553, "partial": 9_304_321, "none": 9_407_521}
    pairwise = {key for key in to_nvidia(network, "none") if key.startswith("transformer.graph_modules.14.conv")}
    assert {key.split(".")[4] for key in pairwise} == {"0,0", "1,0", "2,0", "3,0"} and len(pairwise) == 4 * 9
    shapes = {key.removeprefix("transformer.graph_modules."): tuple(v.shape) for key, v in to_nvidia(network).items()}
    assert shapes["0.to_key_value.conv.0,0.radial_func.net.6.weight"] == (6 * 32, 32)
    assert shapes["2.to_key_value.conv.radial_func.net.6.weight"] == (44 * 32 * 32, 32)
    assert shapes["2.to_key_value.conv.radial_func.net.4.bias"] == (32,)
    assert shapes["2.to_query.weights.3"] == (16, 32) and shapes["0.project.weights.0"] == (32, 22)
    assert shapes["13.group_norm.weight"] == (128,)
    assert shapes["14.conv_out.0.radial_func.net.6.weight"] == (4 * 32 * 128, 32)
    assert shapes["14.to_kernel_self.0"] == (128, 32) and shapes["mlp.2.weight"] == (1, 128)


def test_less_sharing_than_needed_is_refused_in_both_directions() -> None:
    pairwise, full = small_network(sharing="pairwise"), small_network()
    with pytest.raises(UserError, match=r"blocks\.1\..* differ.*conv\.radial_func.*sharing=pairwise"):
        to_nvidia(pairwise, "full")
    nvidia = to_nvidia(full, "none")
    key = "transformer.graph_modules.2.to_key_value.conv.1,2.radial_func.net.0.bias"
    nvidia[key] = nvidia[key] + 1
    with pytest.raises(UserError, match=r"conv\.1,2\.radial_func\.net\.0\.bias differ"):
        from_nvidia(nvidia, full)


def test_a_checkpoint_of_another_network_is_refused_by_key(tmp_path: Path) -> None:
    network, path = small_network(), tmp_path / "model.pth"
    for other, message in {
        small_network(
            num_channels=16
        ): r"0\.to_query\.weights\.0 is \(8, 6\) in the checkpoint and \(4, 6\) in this network",
        small_network(num_layers=1): r"graph_modules\.2\.to_query\.weights\.0 is absent in the checkpoint",
        small_network(num_layers=3): r"graph_modules\.4\.to_kernel_self\.0 is absent in the checkpoint",
        small_network(num_degrees=2): r"0\.project\.weights\.2 is absent in the checkpoint",
    }.items():
        torch.save({"state_dict": to_nvidia(other), "epoch": 99}, path)
        with pytest.raises(UserError, match=message) as raised:
            load_nvidia(path, network)
        assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors"])
def test_both_file_formats_are_loaded(tmp_path: Path, name: str) -> None:
    network, path = small_network(), tmp_path / name
    expected = {key: value.clone() for key, value in network.state_dict().items()}
    nvidia = {key: value.clone(memory_format=torch.contiguous_format) for key, value in to_nvidia(network).items()}
    save_file(nvidia, path) if path.suffix == ".safetensors" else torch.save({"state_dict": nvidia}, path)
    for parameter in network.parameters():
        parameter.data.zero_()
    load_nvidia(path, network)
    assert_close(dict(network.state_dict()), expected, rtol=1e-15, atol=0)
