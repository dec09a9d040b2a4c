"""Data-dependent initialisation: values, when it happens, and agreement of ranks with one process."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.actnorm import ActNorm, BatchNorm, initialize_alike
from src.models.moflow.network import MoFlow
from tests.support.tiny_moflow import make_molecules, make_network, steps_of

BATCH = 12


@pytest.mark.parametrize(("shape", "dims"), [((5,), (0, 1)), ((7, 1), (0, 2))])
def test_initialised_channels_have_mean_0_and_std_1(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = 3 * torch.randn(6, 7, 5) + torch.arange(5)
    norm = ActNorm(*shape)
    assert torch.equal(norm(values)[0], values)
    initialize_alike([norm], [values])
    output, _ = norm(values)
    assert_close(output.mean(dims), torch.zeros(shape).flatten(), atol=1e-5, rtol=0)
    assert_close(output.std(dims, unbiased=True), torch.ones(shape).flatten())
    assert_close(norm.reverse(output), values)
    assert_close(norm.scale.flatten(), 1 / (values.std(dims) + 1e-6))


def test_batch_norm_equals_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(5), torch.nn.BatchNorm1d(5)
    for values in (torch.randn(4, 5, 3), 2 + torch.randn(4, 5, 3)):
        assert_close(ours(values), theirs(values))
    assert_close(ours.eval()(values), theirs.eval()(values))
    assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("flow", ["atom_flow", "bond_flow"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_norm_batch_normalises_as_devices_of_that_batch_do(flow: str, logdet: str) -> None:
    """Outputs, gradients and running statistics of one batch of 12 against three of 4, each normalised alone."""
    results = []
    for norm_batch in (4, None):
        network = make_network(norm_batch=norm_batch, logdet=logdet)
        nodes, edges = make_molecules(BATCH)
        x, adj = network.dequantise(*network.one_hot(nodes, edges), noise=False)
        x = x + torch.linspace(0, 1, x.numel(), dtype=x.dtype).view(x.shape)
        before = {name: value.clone() for name, value in network.named_buffers() if "running" in name}
        outputs, statistics = [], []
        for rows in [slice(0, BATCH)] if norm_batch else [slice(start, start + 4) for start in (0, 4, 8)]:
            for name, value in before.items():
                network.get_buffer(name).copy_(value)
            z, log_det = network.atom_flow(x[rows], adj[rows]) if flow == "atom_flow" else network.bond_flow(adj[rows])
            (z.square().sum() + log_det.sum()).backward()
            outputs.append(torch.cat([z.flatten(1), log_det[:, None]], 1))
            statistics.append(torch.cat([network.get_buffer(name) for name in before]))
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        results.append((torch.cat(outputs), torch.stack(statistics).mean(0), gradients))
    assert_close(*results)


def test_norm_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="norm_batch=5 does not divide a device's batch of 12"):
        make_network(norm_batch=5).initialize(*make_molecules(BATCH))


def fix_noise(network: MoFlow, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Fixes the noise, so that the initialising pass can be repeated; returns the molecules."""
    nodes, edges = make_molecules(BATCH)
    torch.manual_seed(2)
    x, adj = network.dequantise(*network.one_hot(nodes, edges), noise=True)
    monkeypatch.setattr(network, "dequantise", lambda *_args, **_kwargs: (x, adj))
    return nodes, edges


def test_network_is_initialised_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first training step has every ActNorm's output normalised: each was initialised after the steps before it."""
    network = make_network()
    nodes, edges = fix_noise(network, monkeypatch)
    running = {name: value.clone() for name, value in network.named_buffers() if "running" in name}
    assert not network.initialized
    network.initialize(nodes, edges)
    assert network.initialized
    assert_close({name: value for name, value in network.named_buffers() if "running" in name}, running, rtol=0, atol=0)
    outputs: list[tuple[Tensor, tuple[int, int]]] = []
    for chain, dims in ((network.bond_flow, (0, 1)), (network.atom_flow, (0, 2))):
        for step in steps_of(chain):
            step.actnorm.register_forward_hook(lambda _m, _i, output, dims=dims: outputs.append((output[0], dims)))
    network(nodes, edges)
    assert len(outputs) == 8
    for output, dims in outputs:
        mean, std = output.mean(dims), output.std(dims)
        assert_close(mean, torch.zeros_like(mean), atol=1e-6, rtol=0)
        assert_close(std, torch.ones_like(std), atol=1e-4, rtol=0)


def test_initialisation_happens_once_and_survives_a_checkpoint() -> None:
    network, restored = make_network(), make_network(seed=1)
    network.initialize(*make_molecules(BATCH))
    restored.load_state_dict(network.state_dict())
    for initialised in (network, restored):
        initialised.initialize(*make_molecules(BATCH, seed=9))
        assert_close(dict(initialised.named_parameters()), dict(network.named_parameters()), rtol=0, atol=0)
    assert restored.initialized


def set_as_devices(networks: list[MoFlow], x: Tensor, adj: Tensor, graph: Tensor) -> None:
    """Starts one ActNorm after another of all networks by means over them, each pass from the beginning."""
    size = len(x) // len(networks)
    parts = list(zip(x.split(size), adj.split(size), graph.split(size), strict=True))
    for flow, dims in (("bond_flow", (0, 1)), ("atom_flow", (0, 2))):
        for index in range(len(getattr(networks[0], flow).steps)):
            seen: list[Tensor] = []
            norms = [steps_of(getattr(network, flow))[index].actnorm for network in networks]
            hooks = [
                norm.register_forward_pre_hook(lambda _norm, args, seen=seen: seen.append(args[0])) for norm in norms
            ]
            for network, (atoms, bonds, clean) in zip(networks, parts, strict=True):
                network.bond_flow(bonds) if flow == "bond_flow" else network.atom_flow(atoms, clean)
            for hook in hooks:
                hook.remove()
            mean, std = torch.stack([torch.stack((v.mean(dims), v.std(dims))) for v in seen]).mean(0)
            for norm in norms:
                norm.loc.data, norm.scale.data = -mean.view_as(norm.loc), 1 / (std + 1e-6).view_as(norm.scale)


def test_norm_batch_starts_as_devices_with_other_weights_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of 4 of a batch of 12 passes through a network of its own; the first is the one that is trained."""
    network = make_network(norm_batch=4)
    nodes, edges = fix_noise(network, monkeypatch)
    x, adj = network.dequantise()  # type: ignore[call-arg]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(3)
    networks = network.networks_of_devices(3)
    weights = [replica.bond_flow.steps[0].coupling.convs[0].weight for replica in networks]  # type: ignore[union-attr]
    assert torch.equal(weights[0], before["bond_flow.steps.0.coupling.convs.0.weight"])
    assert not any(torch.equal(weights[0], weight) for weight in weights[1:]) and not torch.equal(*weights[1:])
    set_as_devices(networks, x, adj, network.one_hot(nodes, edges)[1])
    torch.manual_seed(3)
    network.initialize(nodes, edges)
    assert network.initialized
    expected = networks[0].state_dict()
    for name, value in network.state_dict().items():
        kept = before if "actnorm" not in name else expected
        if "initialized" not in name:
            assert_close(value, kept[name], rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def test_one_device_starts_without_random_numbers() -> None:
    """But for the noise: a seed's weights and order of the data do not depend on it."""
    drawn = []
    for start in (MoFlow.initialize, lambda network, *batch: network.dequantise(*network.one_hot(*batch), noise=True)):
        network = make_network()
        torch.manual_seed(4)
        start(network, *make_molecules(BATCH))
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def initialise_one_rank(rank: int, world: int, folder: str, norm_batch: int | None) -> None:
    """Initialises in a process of its own, with the samples of its rank and their part of the batch's noise."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(initialised_state(rank, world, norm_batch), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def initialised_state(rank: int, world: int, norm_batch: int | None = None) -> dict[str, Tensor]:
    network = make_network(norm_batch=norm_batch)
    nodes, edges = make_molecules(BATCH)
    torch.manual_seed(2)
    x, adj = network.dequantise(*network.one_hot(nodes, edges), noise=True)
    span = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    network.dequantise = lambda *_args, **_kwargs: (x[span], adj[span])  # type: ignore[method-assign]
    torch.manual_seed(10 + rank)
    if world == 1:  # in groups as on both ranks
        network.norm_batch = norm_batch or BATCH // 2
    network.initialize(nodes[span], edges[span])
    return network.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("norm_batch", [None, 3])
def test_two_ranks_initialise_like_one_process(tmp_path: Path, norm_batch: int | None) -> None:
    expected = initialised_state(0, 1, norm_batch)
    spawn(initialise_one_rank, (2, str(tmp_path), norm_batch), nprocs=2)
    states = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert_close(states[0], states[1], rtol=0, atol=0)
    assert_close(states[0], dict(expected), rtol=1e-10, atol=1e-10)
