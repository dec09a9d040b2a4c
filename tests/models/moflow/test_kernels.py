"""The fast modules equal the plain ones: outputs, log-determinants and every gradient, in float64."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu.replace import replace_submodules
from src.models.moflow.atom import GraphConv
from src.models.moflow.bond import Conv3x3
from src.models.moflow.fast import REPLACEMENTS
from src.models.moflow.network import Latent
from tests.support.tiny_moflow import make_molecules, make_network, steps_of

assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def results(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Returns the output, and gradients of inputs and parameters for a fixed direction."""
    output = module(*inputs)
    direction = torch.arange(output.numel(), dtype=output.dtype).view_as(output).sin()
    leaves = [tensor for tensor in (*inputs, *module.parameters()) if tensor.requires_grad]
    return [output, *torch.autograd.grad(output, leaves, direction)]


def assert_fast_is_plain(module: nn.Module, *inputs: Tensor) -> None:
    expected, plain = results(module, *inputs), type(module)
    replace_submodules(module, REPLACEMENTS)
    assert type(module) is not plain
    assert_close(results(module, *inputs), expected)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dense_product_equals_the_padded_convolution(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    conv = Conv3x3(3, 5)
    assert conv.weight.is_contiguous()  # a GPU changes the layout sooner than a CPU
    conv.double()
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    conv.weight = nn.Parameter(conv.weight.detach().contiguous(memory_format=memory_format))
    assert_fast_is_plain(conv, torch.randn(2, 4, 3).double().requires_grad_())


def relations_like(adj: Tensor) -> Tensor:
    """Returns adjacencies [batch, receiver, kind, sender] with the identity before the first kind."""
    identity = torch.eye(adj.shape[-1]).double()[:, None].expand(len(adj), -1, -1, -1)
    return torch.cat([identity, adj.double()], 2)


def test_fast_graph_conv_equals_the_plain_one() -> None:
    torch.manual_seed(0)
    relations = relations_like(torch.randint(0, 2, (2, 4, 3, 4)))
    assert_fast_is_plain(GraphConv(10, 3, 6).double(), torch.randn(2, 4, 10).double().requires_grad_(), relations)


def test_graph_conv_equals_the_formula() -> None:
    """Term by term; the edge type is the fastest index of the edge weight's rows."""
    torch.manual_seed(0)
    conv, x, adj = GraphConv(2, 2, 4).double(), torch.randn(1, 3, 2).double(), torch.rand(2, 3, 3).double()
    output = conv(x, relations_like(adj.transpose(0, 1)[None]))[0]
    (self_weight, self_bias), (edge, edge_bias) = conv.self_linear.parameters(), conv.edge_linear.parameters()
    for m in range(3):
        for c in range(4):
            expected = self_weight[c] @ x[0, m] + self_bias[c]
            for e in range(2):
                for n in range(3):
                    expected = expected + adj[e, m, n] * (edge[2 * c + e] @ x[0, n] + edge_bias[2 * c + e])
            assert_close(output[m, c], expected)


@pytest.mark.parametrize("squeeze", [2, 1])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_fast_and_plain_networks_agree(logdet: str, squeeze: int) -> None:
    """In training mode; squeeze 1 has 4x4 maps, whose convolutions stay."""
    nodes, edges = make_molecules(5)
    outcomes: list[Any] = []
    for kernels in ("off", "auto"):
        network = make_network(kernels=kernels, logdet=logdet, bond_squeeze=squeeze)
        torch.manual_seed(1)
        latent = network(nodes, edges)
        loss = network.loss(latent)
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        outcomes.append((latent, loss, gradients, network.eval().reverse(latent.z_atom, latent.z_bond)))
    (latent, loss, gradients, generated), expected = outcomes
    assert_close((tuple(latent), loss, generated), (tuple(expected[0]), expected[1], expected[3]))
    for gradient, other in zip(gradients, expected[2], strict=True):
        assert (gradient is None) == (other is None)
        if gradient is not None:
            assert_close(gradient, other)


def test_new_networks_have_the_modules_of_the_first() -> None:
    for kernels in ("off", "auto"):
        network = make_network(kernels=kernels)
        kinds = [type(module) for module in network.modules()]
        for other in (network.with_atom_classes(5), *network.networks_of_devices(2)):
            assert [type(module) for module in other.modules()] == kinds


@pytest.mark.parametrize("conv_lu", [0, 1, 2])
@pytest.mark.parametrize("padding", ["prior", "encoded"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_fast_and_plain_modules_leave_the_same_state_after_steps(logdet: str, padding: str, conv_lu: int) -> None:
    """Of every parameter and buffer, after three steps and after sampling in training mode."""
    states = []
    for kernels in ("off", "auto"):
        network = make_network(kernels=kernels, logdet=logdet, padding=padding, conv_lu=conv_lu)
        network.initialize(*make_molecules(5))
        optimizer = torch.optim.SGD(network.parameters(), 1e-2)
        for seed in range(3):
            optimizer.zero_grad()
            network.loss(network(*make_molecules(5, seed))).backward()
            optimizer.step()
        network.sample(4, 0.3)
        states.append(dict(network.state_dict()))
    assert_close(*states)


@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_exact_steps_update_statistics_of_their_own_row_only(kernels: str) -> None:
    """In training mode; the own row gets the same statistics as with the published log-determinant."""
    networks = [make_network(logdet=logdet, kernels=kernels) for logdet in ("published", "exact")]
    before = make_network(logdet="exact")
    for network in networks:
        torch.manual_seed(1)
        network(*make_molecules(5))
    for full, single, old in zip(*(steps_of(n.atom_flow) for n in (*networks, before)), strict=True):
        others = torch.arange(4) != full.row
        for norms in zip(full.norms, single.norms, old.norms, strict=True):
            for name in ("running_mean", "running_var"):
                all_rows, own_row, untouched = (getattr(norm, name) for norm in norms)
                assert_close(own_row[full.row], all_rows[full.row])
                assert not torch.equal(own_row[full.row], untouched[full.row])
                assert torch.equal(own_row[others], untouched[others])


def test_autocast_keeps_latents_and_statistics_in_float32() -> None:
    nodes, edges = make_molecules(6)
    network = make_network(conv_lu=1).float()
    seen = []
    for module in network.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    expected = network.eval()(nodes, edges)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        latent = network(nodes, edges)
        loss = network.train().loss(network(nodes, edges))
    loss.backward()
    assert isinstance(latent, Latent) and {tensor.dtype for tensor in latent} == {torch.float32}
    assert loss.dtype == torch.float32 and set(seen) == {torch.bfloat16}
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in network.parameters())
    assert all(buffer.dtype != torch.bfloat16 for buffer in network.buffers())
    for actual, full in zip(latent, expected, strict=True):
        assert_close(actual, full, rtol=0.1, atol=0.1)
