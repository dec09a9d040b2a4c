"""The fast kernels equal the reference kernels: outputs, log-determinants and every gradient, in float64."""

from functools import partial

import pytest
import torch

from src.models.moflow.fast import conv as fast
from src.models.moflow.fast import reference
from src.models.moflow.network import Latent
from tests.support.tiny_moflow import make_molecules, make_network, steps_of

assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def assert_same_function(first, second, inputs) -> None:
    """Checks that outputs, and gradients for a fixed direction, are equal."""
    results = []
    for function in (first, second):
        output = function(*inputs)
        direction = torch.arange(output.numel(), dtype=output.dtype).view_as(output).sin()
        results.append([output, *torch.autograd.grad(output, [i for i in inputs if i.requires_grad], direction)])
    assert_close(*results)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_dense_product_equals_the_padded_convolution(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    weight = leaf(5, 3, 3, 3).detach().contiguous(memory_format=memory_format).requires_grad_()
    assert_same_function(fast.conv3x3, reference.conv3x3, [leaf(2, 4, 3), weight, leaf(5)])


def test_fast_graph_conv_equals_the_reference() -> None:
    torch.manual_seed(0)
    relations = torch.randint(0, 2, (2, 4, 4, 4)).double()
    relations[:, :, 0] = torch.eye(4)
    inputs = [leaf(2, 4, 10), relations, leaf(6, 10), leaf(6), leaf(18, 10), leaf(18)]
    assert_same_function(fast.graph_conv, reference.graph_conv, inputs)


def test_reference_graph_conv_equals_the_formula() -> None:
    """Term by term; the edge type is the fastest index of the edge weight's rows."""
    torch.manual_seed(0)
    x, self_weight, self_bias, edge, edge_bias = leaf(1, 3, 2), leaf(4, 2), leaf(4), leaf(8, 2), leaf(8)
    adj = torch.rand(2, 3, 3, dtype=torch.float64)
    relations = torch.stack([torch.eye(3, dtype=torch.float64), *adj]).transpose(0, 1)[None]
    output = reference.graph_conv(x, relations, self_weight, self_bias, edge, edge_bias)[0]
    for m in range(3):
        for c in range(4):
            expected = self_weight[c] @ x[0, m] + self_bias[c]
            for e in range(2):
                for n in range(3):
                    expected = expected + adj[e, m, n] * (edge[2 * c + e] @ x[0, n] + edge_bias[2 * c + e])
            assert_close(output[m, c], expected)


@pytest.mark.parametrize("squeeze", [2, 1])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_executions_of_the_whole_network_agree(logdet: str, squeeze: int) -> None:
    """In training mode; squeeze 1 has 4x4 maps, for which the fast execution falls back to convolutions."""
    nodes, edges = make_molecules(5)
    results = []
    for execution in ("reference", "fast"):
        network = make_network(logdet=logdet, bond_squeeze=squeeze, execution=execution)
        torch.manual_seed(1)
        latent = network(nodes, edges)
        loss = network.loss(latent)
        gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
        results.append((latent, loss, gradients, network.eval().reverse(latent.z_atom, latent.z_bond)))
    (latent, loss, gradients, generated), expected = results
    assert_close((tuple(latent), loss, generated), (tuple(expected[0]), expected[1], expected[3]))
    for gradient, other in zip(gradients, expected[2], strict=True):
        assert (gradient is None) == (other is None)
        if gradient is not None:
            assert_close(gradient, other)


def test_executions_share_the_state_dict_and_can_be_switched() -> None:
    nodes, edges = make_molecules(2)
    network = make_network(execution="reference").eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    expected = network(nodes, edges)
    network.execution = "fast"
    assert {module.execution for module in network.modules() if hasattr(module, "execution")} == {"fast"}
    assert_close(tuple(network(nodes, edges)), tuple(expected))
    assert_close(dict(network.state_dict()), state, rtol=0, atol=0)
    assert list(state) == list(make_network(execution="fast").state_dict())


@pytest.mark.parametrize("conv_lu", [0, 1, 2])
@pytest.mark.parametrize("padding", ["prior", "encoded"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_executions_leave_the_same_state_after_steps(logdet: str, padding: str, conv_lu: int) -> None:
    """Of every parameter and buffer, after three steps and after sampling in training mode."""
    states = []
    for execution in ("reference", "fast"):
        network = make_network(logdet=logdet, padding=padding, conv_lu=conv_lu, execution=execution)
        network.initialize(*make_molecules(5))
        optimizer = torch.optim.SGD(network.parameters(), 1e-2)
        for seed in range(3):
            optimizer.zero_grad()
            network.loss(network(*make_molecules(5, seed))).backward()
            optimizer.step()
        network.sample(4, 0.3)
        states.append(dict(network.state_dict()))
    assert_close(*states)


@pytest.mark.parametrize("execution", ["reference", "fast"])
def test_exact_steps_update_statistics_of_their_own_row_only(execution: str) -> None:
    """In training mode; the own row gets the same statistics as with the published log-determinant."""
    networks = [make_network(logdet=logdet, execution=execution) for logdet in ("published", "exact")]
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
