"""Sizes, outputs, precision and argument checks of the networks."""

import os
import subprocess
import sys
from inspect import unwrap
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.gpu.replace import Kernels
from src.models.se3_transformer import Fiber, SE3Transformer, SE3TransformerPooled, fast
from src.models.se3_transformer.network import Features
from src.models.se3_transformer.pooling import Pooling
from src.models.se3_transformer.radial import Sharing
from src.system.interpreter import python, safe_path
from tests.support import ROOT
from tests.support.se3_small import random_features, random_graph, seeded

SMALL: dict[str, Any] = {"num_layers": 2, "num_degrees": 2, "num_channels": 4, "num_heads": 2}


@pytest.mark.slow
def test_the_library_imports_neither_lightning_nor_hydra() -> None:
    code = (
        "import sys, src.models.se3_transformer; print({'pytorch_lightning', 'hydra', 'omegaconf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("sharing", "parameters"), [("full", 9_279_553), ("pairwise", 9_407_521)])
def test_the_published_model_has_the_published_size(sharing: Sharing, parameters: int) -> None:
    network = SE3TransformerPooled(sharing=sharing)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


def test_the_state_dict_does_not_depend_on_kernels_and_low_memory() -> None:
    states = []
    for kernels in ("auto", "off"):
        for low_memory in (False, True):
            torch.manual_seed(0)
            network = fast.accelerate(SE3TransformerPooled(**SMALL, low_memory=low_memory), kernels)
            states.append(dict(network.state_dict()))
    assert states[0].keys() == dict(SE3TransformerPooled(**SMALL).named_parameters()).keys()
    for state in states[1:]:
        assert_close(state, states[0], rtol=0, atol=0)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    graph = random_graph(dtype=dtype)
    nodes = random_features(Fiber({0: 6}), len(graph.positions), dtype)
    return graph, nodes, random_features(Fiber({0: 4}), len(graph.src), dtype)


@pytest.mark.parametrize("pooling", [None, "mean"])
@pytest.mark.parametrize("return_type", [None, 0, 1])
def test_output_rows_and_degrees_follow_pooling_and_return_type(
    return_type: int | None, pooling: Pooling | None
) -> None:
    graph, nodes, edges = inputs()
    network = SE3Transformer(
        Fiber({0: 6}), Fiber({0: 5, 1: 3}), Fiber.create(2, 4), Fiber({0: 4}), 1, 2,
        pooling=pooling, return_type=return_type,
    )  # fmt: skip
    rows = 3 if pooling else len(graph.positions)
    shapes = {0: (rows, 5, 1), 1: (rows, 3, 3)}
    result = network(graph, nodes, edges)
    if return_type is None:
        assert {degree: tuple(feature.shape) for degree, feature in result.items()} == shapes
    else:
        assert tuple(result.shape) == shapes[return_type]


def test_scalars_may_be_plain_tensors() -> None:
    graph, nodes, edges = inputs()
    network = SE3TransformerPooled(**SMALL)
    plain = network(graph, nodes[0].squeeze(2), edges[0].squeeze(2))
    assert plain.shape == (3, 1) and torch.equal(plain, network(graph, nodes, edges))


def test_edges_may_have_only_their_length() -> None:
    graph, nodes, _ = inputs()
    network = SE3TransformerPooled(**SMALL, edge_features=0)
    longer = graph._replace(positions=1.1 * graph.positions)
    assert not torch.allclose(network(graph, nodes), network(longer, nodes))


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("use_layer_norm", [True, False])
def test_norms_are_optional(norm: bool, use_layer_norm: bool) -> None:
    network = SE3TransformerPooled(**SMALL, norm=norm, use_layer_norm=use_layer_norm)
    names = [name for name, _ in network.named_parameters()]
    assert any("norms" in name for name in names) == norm
    assert any("hidden.4.weight" in name for name in names) == use_layer_norm
    assert network(*inputs()).isfinite().all()


def compile_before_and_after_a_call() -> None:
    """Before one, e3nn's tables are still to be made, outside of the graphs; after it there is one graph."""
    network = SE3TransformerPooled(**SMALL)
    first = torch.compile(network, backend="aot_eager")(*inputs())
    expected = network(*inputs())
    assert_close(first, expected)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert_close(compiled(*inputs()), expected)


@pytest.mark.slow
def test_torch_compile_takes_a_plain_network() -> None:
    """In a process without checks of types, which cannot be compiled."""
    script = f"from {__name__} import compile_before_and_after_a_call as run; run()"
    subprocess.run(python("-c", script), env=os.environ | safe_path(), cwd=ROOT, check=True)


def test_every_parameter_has_a_gradient() -> None:
    torch.manual_seed(0)
    network = SE3TransformerPooled(**SMALL, pooling="sum").double()
    network(*inputs(torch.float64)).square().sum().backward()
    without = [
        name for name, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    # Norms' biases in the ReLU's inactive half may have none.
    assert not [name for name in without if "norms" not in name]


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_autocast_computes_in_half_precision_and_stays_close(kernels: Kernels) -> None:
    torch.manual_seed(0)
    network = fast.accelerate(SE3TransformerPooled(**SMALL), kernels)
    exact = network(*inputs())
    dtypes: list[torch.dtype] = []
    for block in network.transformer.blocks:
        block.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = network(*inputs())
    assert dtypes == [torch.bfloat16] * 2
    rounded.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)
    assert_close(rounded.float(), exact, rtol=0.1, atol=0.05)
    assert not torch.equal(rounded.float(), exact)


def test_kernels_can_be_changed_at_any_time() -> None:
    network = SE3TransformerPooled(**SMALL).double()
    outputs = [fast.accelerate(network, kernels)(*inputs(torch.float64)) for kernels in ("off", "auto", "off")]
    assert_close(outputs[1], outputs[0], rtol=0, atol=1e-11)
    assert torch.equal(outputs[2], outputs[0]) and not torch.equal(outputs[1], outputs[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sharing": "none"}, "sharing=none must be one of full, pairwise"),
        ({"return_type": 2}, "return_type=2 is not a degree of the output"),
        ({"pooling": "avg"}, "pooling=avg must be one of max, mean, sum"),
        ({"pooling": "max"}, "pooling=max would break the symmetry"),
        ({"pooling": "max", "return_type": 1}, "pooling=max would break the symmetry"),
        ({"num_heads": 3}, "num_heads=3 does not divide the 16 attention channels of degree 0"),
        ({"channels_div": 64}, "degree 0 with 0 channels"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    network = SE3Transformer.__new__(SE3Transformer)
    with pytest.raises(UserError, match=message):
        unwrap(SE3Transformer.__init__)(network, Fiber({0: 6}), Fiber({0: 2, 1: 2}), num_layers=1, **arguments)


@pytest.mark.parametrize("channels", [5, 7])
def test_features_of_another_fiber_are_refused(channels: int) -> None:
    graph, _, edges = inputs()
    network = SE3TransformerPooled(**SMALL)
    wrong: Features = torch.randn(len(graph.positions), channels, generator=seeded(0))
    with pytest.raises(UserError, match=rf"node_features have shapes \{{0: \({channels}, 1\)\}}"):
        network(graph, wrong, edges)
    with pytest.raises(UserError, match="edge_features have shapes"):
        network(graph, torch.randn(len(graph.positions), 6, generator=seeded(0)))
