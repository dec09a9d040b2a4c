"""The whole model: size, inputs, objective, reconstruction and sampling."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.network import Latent, MoFlow, discrete_bonds
from tests.support.tiny_moflow import QM9, SIZES, make_molecules, make_network, steps_of


def test_the_defaults_have_the_published_parameter_count() -> None:
    with torch.device("meta"):
        network = MoFlow()
    parts = [sum(p.numel() for p in part.parameters()) for part in (network.bond_flow, network.atom_flow)]
    assert parts == [134_263_680, 6_844_408]
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 141_108_089
    assert network.ln_var.shape == ()


def test_one_hot_pads_with_no_atom_and_no_bond() -> None:
    network = make_network()
    nodes, edges = make_molecules(2)
    x, adj = network.one_hot(nodes, edges)
    assert x.shape == (2, 4, 3) and adj.shape == (2, 4, 4, 4) and adj.dtype == torch.float64
    assert torch.equal(x.sum(2), torch.ones(2, 4).double()) and torch.equal(adj.sum(1), torch.ones(2, 4, 4).double())
    assert torch.equal(x[:, :3].argmax(2), nodes.long()) and torch.equal(adj[:, :, :3, :3].argmax(1), edges.long())
    assert (x[:, 3, 0] == 1).all() and (adj[:, 0, 3] == 1).all() and (adj[:, 0, :, 3] == 1).all()
    assert (adj[:, 0].diagonal(dim1=1, dim2=2) == 1).all()


@pytest.mark.parametrize(("scale", "low", "width"), [(0.6, (0.0, 1.0), 0.6), (0, (-0.5, 0.0), 0.4)])
def test_dequantisation_noise_is_uniform_and_independent(scale: float, low: tuple[float, float], width: float) -> None:
    network = make_network(noise_scale=scale)
    clean = network.one_hot(*make_molecules(200))
    torch.manual_seed(0)
    x, adj = network.dequantise(*clean, noise=True)
    for value, noised in zip(clean, (x, adj), strict=True):
        noise = noised - torch.where(value == 1, low[1], low[0])
        assert 0 <= noise.min() < 0.01 and width - 0.01 < noise.max() < width
        assert abs(noise.mean() - width / 2) < 0.01
        assert noise.unique().numel() > 0.99 * noise.numel()  # each entry has its own
    assert not torch.equal(adj, adj.transpose(2, 3))
    quiet = network.dequantise(*clean, noise=False)[0]
    assert torch.equal(quiet, torch.where(clean[0] == 1, low[1], low[0]))


def test_noise_is_added_in_training_mode_only() -> None:
    network = make_network()
    molecules = make_molecules(3)
    assert not torch.equal(network(*molecules).z_bond, network(*molecules).z_bond)
    network.eval()
    assert torch.equal(network(*molecules).z_bond, network(*molecules).z_bond)
    assert torch.equal(network(*molecules).z_atom, network.encode(*molecules).z_atom)


def test_bits_per_dim_equals_the_published_formula() -> None:
    network = make_network()
    latent = network(*make_molecules(3))
    ln_var, parts = network.ln_var.item(), []
    for z, logdet, dims in [(latent.z_atom, latent.logdet_atom, 12), (latent.z_bond, latent.logdet_bond, 64)]:
        total = 0.0
        for sample, log_det in zip(z.flatten(1).tolist(), logdet.tolist(), strict=True):
            prior = sum((ln_var + math.log(2 * math.pi)) / 2 + v**2 * math.exp(-ln_var) / 2 for v in sample)
            total += (prior - (log_det - dims * math.log(2))) / (dims * math.log(2)) / 3
        parts.append(total)
    assert [value.item() for value in network.bits_per_dim(latent)] == pytest.approx(parts, rel=1e-12)
    assert network.loss(latent).item() == pytest.approx(sum(parts), rel=1e-12)


def test_every_parameter_has_a_finite_gradient() -> None:
    network = make_network(logdet="published", conv_lu=1)
    network.loss(network(*make_molecules(6))).backward()
    without = {name for name, p in network.named_parameters() if p.grad is None or not p.grad.isfinite().all()}
    assert without == set()


def test_likelihood_is_the_objective_with_noise() -> None:
    network = make_network().eval()
    molecules = make_molecules(4)
    torch.manual_seed(0)
    atom, bond = network.likelihood(*molecules)
    torch.manual_seed(0)
    assert_close((atom, bond), network.bits_per_dim(network._encode(*molecules, noise=True)))
    assert not atom.requires_grad and not torch.isclose(bond, network.bits_per_dim(network(*molecules))[1])


@pytest.mark.parametrize("changes", [{}, {"logdet": "exact"}, {"noise_scale": 0}, {"conv_lu": 0}])
def test_reconstruction_is_perfect(changes: dict[str, Any]) -> None:
    network = make_network(**changes).eval()
    molecules = make_molecules(16)
    for actual, expected in zip(network.reconstruct(*molecules), molecules, strict=True):
        assert torch.equal(actual, expected)


def test_reverse_discretises_the_bonds() -> None:
    network = make_network().eval()
    torch.manual_seed(0)
    z_atom, z_bond = torch.randn(5, 4, 3).double(), torch.randn(5, 4, 4, 4).double()
    x, adj = network.reverse(z_atom, z_bond)
    continuous = network.bond_flow.reverse(z_bond)
    continuous = continuous + continuous.transpose(2, 3)
    assert torch.equal(adj.argmax(1), continuous.argmax(1)) and torch.equal(adj.sum(1), torch.ones(5, 4, 4).double())
    assert_close(network.atom_flow(x, adj)[0], z_atom)
    nodes, edges = network.decode(z_atom, z_bond)
    assert nodes.dtype == edges.dtype == torch.uint8
    assert torch.equal(nodes, x[:, :3].argmax(2).to(torch.uint8))
    assert torch.equal(edges, edges.transpose(1, 2)) and not edges.diagonal(dim1=1, dim2=2).any()
    assert torch.equal(edges.tril(-1), adj[:, :, :3, :3].argmax(1).tril(-1).to(torch.uint8))


def test_scaling_of_the_alternative_noise_is_undone() -> None:
    network = make_network(noise_scale=0).eval()
    x, adj = network.one_hot(*make_molecules(3))
    z_atom, _ = network.atom_flow(x / 2 - 0.5, adj)
    assert_close(network.continuous_atoms(z_atom, adj), x)


def test_tied_bond_kinds_are_all_set() -> None:
    network = make_network().eval()
    network.bond_flow.reverse = lambda z, limit: z  # type: ignore[method-assign]
    tied = torch.tensor([1.0, 1.0, 0.0, -1.0]).double().view(1, 4, 1, 1).expand(1, 4, 4, 4)
    assert discrete_bonds(network.continuous_bonds(tied))[0, :, 0, 0].tolist() == [1, 1, 0, 0]


def test_samples_scale_with_temperature_and_prior() -> None:
    network = make_network().eval()
    drawn = []
    network.decode = lambda z_atom, z_bond: drawn.append((z_atom, z_bond)) or make_molecules(2000)  # type: ignore
    for temperature in (0.3, 0.3, (0.3, 0.15)):
        network.sample(2000, temperature, torch.Generator().manual_seed(4))
    (z_atom, z_bond), again, colder = drawn
    assert_close((z_atom, z_bond), again, rtol=0, atol=0)
    assert_close((z_atom, z_bond / 2), colder)
    sigma = 0.3 * math.exp(network.ln_var.item() / 2)
    assert z_atom.shape == (2000, 4, 3) and z_bond.shape == (2000, 4, 4, 4)
    for z in (z_atom, z_bond):
        assert z.std().item() == pytest.approx(sigma, rel=0.02)


@pytest.mark.parametrize("scale", [0.6, 0])
def test_encoded_padding_samples_the_latents_that_rows_without_an_atom_have(scale: float) -> None:
    network = make_network(num_nodes=6, num_atom_flows=4, padding="encoded", noise_scale=scale).eval()
    drawn = []
    network.decode = lambda z_atom, z_bond: drawn.append(z_atom) or make_molecules(3)  # type: ignore
    for temperature in (1, (1e-9, 1)):
        network.sample(2000, temperature, torch.Generator().manual_seed(4))
    warm, cold = (latents[:, 4:] for latents in drawn)  # the rows that no step transforms
    molecules = make_molecules(2000)
    clean = network.one_hot(*molecules)
    noised, _ = network.dequantise(*clean, noise=True)
    expected = network.atom_flow(noised, clean[1])[0][:, 4:]
    assert_close(warm.mean(0), expected.mean(0), rtol=0.02, atol=0.02)
    assert_close(warm.std(0), expected.std(0), rtol=0.1, atol=1e-3)
    width = scale or 0.4
    middle = network.dequantise(*clean, noise=False)[0] + width / 2
    assert_close(cold, network.atom_flow(middle, clean[1])[0][:, 4:], rtol=1e-6, atol=1e-6)
    assert drawn[0][:, :4].std().item() == pytest.approx(math.exp(network.ln_var.item() / 2), rel=0.05)


def test_rows_that_a_step_transforms_keep_the_prior() -> None:
    transformed, published = make_network(padding="encoded"), make_network(num_nodes=6, num_atom_flows=4)
    for network in (transformed.eval(), published.eval()):
        drawn = []
        network.decode = lambda z_atom, z_bond, drawn=drawn: drawn.append(z_atom) or make_molecules(3)  # type: ignore
        network.sample(4000, 1)
        assert_close(drawn[0].mean(0), torch.zeros_like(drawn[0][0]), rtol=0, atol=0.1)


def test_samples_are_molecules() -> None:
    network = make_network().eval()
    nodes, edges = network.sample(7, 0.5, torch.Generator().manual_seed(0))
    assert nodes.shape == (7, 3) and edges.shape == (7, 3, 3) and nodes.max() < 3 and edges.max() < 4


def test_interpolation_starts_and_ends_at_the_molecules() -> None:
    network = make_network().eval()
    nodes, edges = make_molecules(2)
    steps = network.interpolate(nodes[0], edges[0], nodes[1], edges[1], 5)
    assert steps[0].shape == (5, 3) and steps[1].shape == (5, 3, 3)
    for actual, ends in zip(steps, (nodes, edges), strict=True):
        assert torch.equal(actual[0], ends[0]) and torch.equal(actual[-1], ends[1])
    latent = network.encode(nodes, edges)
    middle = network.decode(latent.z_atom.mean(0, keepdim=True), latent.z_bond.mean(0, keepdim=True))
    assert torch.equal(steps[0][2:3], middle[0]) and torch.equal(steps[1][2:3], middle[1])


def test_qm9_setting_trains_and_reconstructs() -> None:
    torch.manual_seed(0)
    network = MoFlow(**QM9)
    molecules = make_molecules(8, atoms=9, classes=5)
    network.initialize(*molecules)
    latent = network(*molecules)
    assert isinstance(latent, Latent) and latent.z_bond.shape == (8, 4, 9, 9)
    network.loss(latent).backward()
    assert [int(step.row) for step in steps_of(network.atom_flow)[8:11]] == [8, 0, 1]
    nodes, edges = network.eval().reconstruct(*molecules)
    assert torch.equal(nodes, molecules[0]) and torch.equal(edges, molecules[1])


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="max_atoms=5"):
        MoFlow(**{**SIZES, "max_atoms": 5})
