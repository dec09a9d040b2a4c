"""The loss on generated molecules: what it counts, the statistics it uses, and that training on it lowers it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.actnorm import BatchNorm, kept_statistics, reused_statistics
from src.models.moflow.counts import atom_counts, bond_counts, pairs, without_loops
from src.models.moflow.flow import Limit
from src.models.moflow.generated_molecules import (
    FAREST,
    LEAST_SPREAD,
    REAL,
    SCALES,
    SHARPNESS,
    GeneratedMolecules,
    discrepancy,
    excess_bonds,
    orphans,
    probabilities,
    standardised,
    wrong_elements,
)
from src.models.moflow.network import discrete_bonds
from src.molecules.encode import encode
from src.molecules.vocabulary import ZINC250K
from src.run import train
from tests.support.tiny_moflow import make_molecules, make_network
from tests.support.tiny_run import SMILES, tiny_config

TARGET = "src.models.moflow.generated_molecules.GeneratedMolecules"
LEAK = 0.001  # the softmax gives an absent bond a probability, if a small one


def one_hot(edges: np.ndarray) -> torch.Tensor:
    return (torch.arange(4)[:, None, None] == torch.from_numpy(np.array(edges))).double()


def test_real_molecules_have_no_orphans_and_one_more_where_an_atoms_earlier_bonds_are_missing() -> None:
    checked = 0
    for smiles in SMILES:
        _, edges = encode(smiles, ZINC250K)
        whole = one_hot(edges)
        assert orphans(whole[None]) < LEAK
        for row in range(1, Chem.MolFromSmiles(smiles).GetNumAtoms()):
            cut = edges.copy()
            cut[row, :row] = cut[:row, row] = 0
            last = np.flatnonzero(np.tril(cut).any(axis=1)).max(initial=0)  # an atom behind the last bond is none
            behind = [k for k in range(1, last) if not cut[k, :k].any()]
            assert (row in behind) == (row < last)
            assert_close(orphans(one_hot(cut)[None])[0].item(), float(len(behind)), rtol=0, atol=LEAK)
            checked += 1
    assert checked > 20


@pytest.mark.slow
def test_a_molecule_without_these_defects_is_in_one_piece() -> None:
    """Of random ones; where the bonds have no orphan, an isolated atom is what leaves some of them in pieces."""
    draw = np.random.default_rng(1)
    limits = torch.tensor([0.0, 9.0])
    whole, pieces = 0, {"orphans": 0, "isolated": 0}
    for _ in range(2000):
        edges = np.triu(draw.random((5, 5)) < draw.choice([0.2, 0.5]), 1).astype(np.uint8)
        edges = edges + edges.T
        nodes = (edges.any(1) | (draw.random(5) < 0.1)).astype(np.uint8)
        atoms, adj = torch.nn.functional.one_hot(torch.from_numpy(nodes).long(), 2)[None].double(), one_hot(edges)[None]
        orphan, alone = orphans(adj).item() > 0.5, wrong_elements(atoms, adj, limits).item() > 1
        molecule = Chem.RWMol()
        place = {atom: molecule.AddAtom(Chem.Atom(6)) for atom in nodes.nonzero()[0].tolist()}
        for i, j in np.argwhere(np.tril(edges)).tolist():
            molecule.AddBond(place[i], place[j], Chem.BondType.SINGLE)
        in_one = len(Chem.GetMolFrags(molecule)) < 2
        whole += in_one and not orphan
        pieces["orphans"] += orphan and not in_one
        pieces["isolated"] += alone and not orphan and not in_one
        assert in_one or orphan or alone
    assert min(whole, *pieces.values()) > 20, (whole, pieces)


@pytest.mark.parametrize("norm_batch", [None, 12])
def test_with_the_kept_statistics_a_training_flow_runs_backwards_exactly(norm_batch: int | None) -> None:
    """Not with the running ones, which are of other batches; gradients reach the inputs through the statistics."""
    network = make_network(norm_batch=norm_batch)
    _, adj = network.one_hot(*make_molecules(12))
    adj = (adj + 0.6 * torch.rand_like(adj)).requires_grad_()
    flow = network.bond_flow.train()
    with kept_statistics(flow):
        z, _ = flow(adj)
        with reused_statistics(flow):
            again = flow.reverse(z)
    assert_close(again, adj, rtol=1e-8, atol=1e-8)
    (gradient,) = torch.autograd.grad(again.square().sum(), adj)  # of the identity, whatever path it took
    assert_close(gradient, 2 * adj, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(flow.eval().reverse(z), adj)
    kept = [norm.kept_mean for norm in flow.modules() if isinstance(norm, BatchNorm)]
    assert kept and all(mean is None for mean in kept)


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_so_does_the_atom_flow(logdet: str, kernels: str) -> None:
    """Whether it has kept the statistics of all rows or of one; it needs those of one."""
    network = make_network(logdet=logdet, kernels=kernels)
    x, adj = network.one_hot(*make_molecules(12))
    x = (x + 0.6 * torch.rand_like(x)).requires_grad_()
    flow = network.atom_flow.train()
    with kept_statistics(flow):
        z, _ = flow(x, adj)
        with reused_statistics(flow):
            again = flow.reverse(z, adj)
    assert_close(again, x, rtol=1e-8, atol=1e-8)
    (gradient,) = torch.autograd.grad(again.square().sum(), x)
    assert_close(gradient, 2 * x, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(flow.eval().reverse(z, adj), x)


def test_keeping_statistics_changes_nothing_else() -> None:
    results = []
    for keeps in (False, True):
        network = make_network().train()
        _, adj = network.one_hot(*make_molecules(12))
        if keeps:
            with kept_statistics(network.bond_flow):
                z, _ = network.bond_flow(adj)
        else:
            z, _ = network.bond_flow(adj)
        z.square().sum().backward()
        results.append(
            [z, *(parameter.grad for parameter in network.bond_flow.parameters()), *network.bond_flow.buffers()]
        )
    assert_close(*results)


def test_bonds_above_four_at_an_atom_are_in_excess() -> None:
    for smiles, expected in (("CC(C)(C)C", 0.0), ("CS(=O)(=O)C", 2.0), ("O=P(O)(O)O", 1.0)):
        _, edges = encode(smiles, ZINC250K)
        assert_close(excess_bonds(one_hot(edges)[None])[0].item(), expected)


def test_the_discrepancy_is_that_of_its_definition() -> None:
    """Summed pair by pair; near 0 for samples of one distribution, and far from it for others.

    One of another mean, and copies of one sample, whose mean is next to that of all.
    """
    x, y = torch.rand(20, 7, dtype=torch.float64), torch.rand(30, 7, dtype=torch.float64)
    variance = y.var(0, correction=0).sum().item()

    def average(first: torch.Tensor, second: torch.Tensor, skipped: bool) -> float:
        terms = []
        for i, a in enumerate(first):
            for j, b in enumerate(second):
                if not (skipped and i == j):
                    widths = [scale * variance for scale in SCALES]
                    curved = [width / (width + (a - b).square().sum().item()) for width in widths]
                    terms.append((a @ b).item() / variance + sum(curved) / len(curved))
        return sum(terms) / len(terms)

    expected = average(x, x, True) + average(y, y, True) - 2 * average(x, y, False)
    assert_close(discrepancy(x, y).item(), expected)
    one, other = torch.randn(2, REAL, 7, dtype=torch.float64)
    central = one[one.norm(dim=1).argmin()].expand(300, -1)
    assert discrepancy(one, other).abs() < 0.02 < 0.1 < min(discrepancy(one + 1, other), discrepancy(central, other))


def test_counts_are_standardised_by_the_real_ones_and_far_ones_bent() -> None:
    real = torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]], dtype=torch.float64)
    generated = torch.tensor([[4.0, 5.0], [2.0, 6.0]], dtype=torch.float64)
    scores, same = standardised(generated, real)
    far = 1 / LEAST_SPREAD  # of a count that is the same in all real molecules

    def bent(value: float) -> float:
        return value / (1 + (value / FAREST) ** 2) ** 0.5

    spread = (8 / 3) ** 0.5 + LEAST_SPREAD
    assert_close(scores, torch.tensor([[bent(2 / spread), 0], [0, bent(far)]], dtype=torch.float64))
    assert_close(same[:, 1], torch.zeros(3, dtype=torch.float64))
    assert scores.max() < FAREST < far


def test_elements_that_cannot_have_their_bonds_are_improbable() -> None:
    """Of a chain of four atoms with a double bond between the middle ones, and a place without a bond behind it."""
    edges = np.zeros((5, 5), np.uint8)
    edges[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = 1, 1, 2, 2, 1, 1
    limits = torch.tensor([0.0, 4.0, 2.0, 1.0]).double()  # of no atom and of three elements
    for classes, wrong in (([1, 1, 1, 1, 0], 0), ([3, 2, 1, 3, 0], 1), ([3, 3, 3, 3, 3], 3), ([1, 0, 1, 0, 0], 2)):
        atoms = torch.nn.functional.one_hot(torch.tensor(classes), 4).double()
        penalty = wrong_elements(atoms[None], one_hot(edges)[None], limits).item()
        assert_close(penalty, SHARPNESS * wrong, rtol=0, atol=wrong * math.log(3) + LEAK)
    undecided = torch.full((1, 5, 4), 0.25, dtype=torch.float64)
    penalty = wrong_elements(undecided, one_hot(edges)[None], limits).item()
    assert_close(penalty, 2 * math.log(4 / 3) + 3 * math.log(4))  # three elements may end the chain
    edges[0, 2] = edges[2, 0] = 3  # six bond orders are those that any element has at most
    assert wrong_elements(atoms[None], one_hot(edges)[None], limits).isfinite().all()


@pytest.mark.parametrize("place", [1, 4])
def test_a_wrong_element_has_a_slope_however_sure_the_flow_is(place: int) -> None:
    edges = np.zeros((5, 5), np.uint8)
    edges[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = 1, 1, 2, 2, 1, 1
    atoms = torch.nn.functional.one_hot(torch.tensor([1, 1, 1, 1, 0]), 4).double()
    atoms[place] = torch.tensor([0.0, 0.0, 0.0, 2.0])
    atoms.requires_grad_()
    wrong_elements(atoms[None], one_hot(edges)[None], torch.tensor([0.0, 4.0, 2.0, 1.0]).double()).sum().backward()
    assert atoms.grad is not None
    assert_close(atoms.grad[place, 3].item(), SHARPNESS, rtol=0, atol=LEAK)


def test_it_is_that_of_the_molecules_that_the_network_draws() -> None:
    network, batch = make_network().train(), make_molecules(12)
    loss = GeneratedMolecules(defects=20.0, discrepancy=100.0, molecules=64, temperatures=(0.5, 0.5))
    most_bonds = torch.tensor([0.0, 4.0, 1.0]).double()
    with kept_statistics(network):
        network(*batch)
        torch.manual_seed(1)
        losses = loss(network, *batch, most_bonds)
        torch.manual_seed(1)
        latents = []
        for shape in ((4, 4, 4), (4, 3)):
            torch.rand(64, *(1 for _ in shape), dtype=torch.float64)
            latents.append(0.5 * torch.exp(network.ln_var / 2) * torch.randn(64, *shape, dtype=torch.float64))
        with reused_statistics(network):
            bonds = network.bond_flow.reverse(latents[0], Limit())
            bonds = (bonds + bonds.transpose(2, 3)) / 2
            adj = discrete_bonds(bonds.detach())
            atoms = network.atom_flow.reverse(latents[1], adj, Limit())
    bonds, adj, atoms = bonds[:, :, :3, :3], adj[:, :, :3, :3], atoms[:, :3]  # the atoms that molecules have
    assert (adj.diagonal(dim1=2, dim2=3)[:, 1:] != 0).any()
    likely, adj, elements = without_loops(probabilities(bonds, 1)), without_loops(adj), probabilities(atoms, 2)
    assert_close(losses["orphans"], orphans(bonds).mean())
    assert_close(losses["excess_bonds"], excess_bonds(likely).mean())
    assert_close(losses["wrong_elements"], wrong_elements(atoms, adj, most_bonds).mean())
    real = torch.stack([one_hot(edges) for edges in batch[1].numpy()])
    real_elements = torch.nn.functional.one_hot(batch[0].long(), 3).double()
    apart = [
        discrepancy(pairs(likely), pairs(real)),
        discrepancy(*standardised(bond_counts(likely), bond_counts(real))),
        discrepancy(*standardised(atom_counts(elements, adj), atom_counts(real_elements, real))),
    ]
    assert_close(losses["discrepancy"], sum(apart, torch.zeros(())))
    defects = losses["orphans"] + losses["excess_bonds"] + losses["wrong_elements"] + losses["overflow"] / 10
    assert_close(losses["penalty"], (20 * defects + 100 * losses["discrepancy"]) / 4**3)  # bits per dimension
    assert min(losses["orphans"], losses["discrepancy"], losses["wrong_elements"]) > 0.01
    losses["penalty"].backward()
    for flow in (network.bond_flow, network.atom_flow):
        assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in flow.parameters())


@pytest.mark.parametrize("padding", ["prior", "encoded"])
@pytest.mark.slow
def test_the_host_reads_no_result(padding: str) -> None:
    """A captured CUDA graph cannot hold that. It is said of the backward pass too, where cumprod's gradient does it."""
    network, batch = make_network(padding=padding, num_atom_flows=3).train(), make_molecules(12)
    with kept_statistics(network), profile(activities=[ProfilerActivity.CPU]) as profiled:
        network(*batch)
        losses = GeneratedMolecules(molecules=64)(network, *batch, torch.tensor([0.0, 4.0, 1.0]).double())
        losses["penalty"].backward()
    ran = {event.name for event in profiled.events() or []}
    assert "aten::mul" in ran
    assert not ran & {"aten::_local_scalar_dense", "aten::nonzero"}


@pytest.mark.parametrize("same", [1, 12])
def test_molecules_that_are_all_the_same_have_a_finite_gradient(same: int) -> None:
    network = make_network().train()
    nodes, edges = (tensor.expand(same, *tensor.shape[1:]) for tensor in make_molecules(1))
    with kept_statistics(network):
        network(*make_molecules(12))
        most_bonds = torch.tensor([0.0, 4.0, 1.0]).double()
        losses = GeneratedMolecules(molecules=64)(network, nodes, edges, most_bonds)
    losses["penalty"].backward()
    assert losses["penalty"].isfinite()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in network.parameters())


def test_values_that_go_far_are_cut_off_and_pulled_back() -> None:
    z = torch.tensor([[[1.0, -7.0, 80.0, torch.inf, -torch.inf, torch.nan]]], requires_grad=True)
    limit = Limit()
    assert limit(z).tolist() == [[[1, -7, 50, 50, -50, 0]]]
    finite = torch.tensor([[[1.0, -7.0, 80.0]]], requires_grad=True)
    limit = Limit()
    limit(finite)
    beyond = torch.as_tensor(limit.beyond)
    assert_close(beyond.item(), float(np.log(3) + np.log(76)))
    beyond.backward()
    assert_close(finite.grad, torch.tensor([[[0, -1 / 3, 1 / 76]]]))


@pytest.mark.parametrize("temperatures", [(0.3,), (1.0, 0.3), (0.3, 0.5, 1.0)])
def test_other_temperatures_than_a_least_and_a_greatest_are_refused(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"temperatures=.* must be two, the least and the greatest"):
        GeneratedMolecules(temperatures=temperatures)


@pytest.mark.slow
def test_training_with_it_lowers_the_defects(tmp_path: Path) -> None:
    """Against the same training in which they weigh next to nothing: the likelihood lowers them too."""
    options = "fit.max_epochs=4", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", "measure.window=1"
    parts = ("orphans", 0.5), ("wrong_elements", 0.85)  # at most that share: few steps change the elements less
    ends = []
    for bits in (30, 1e-9):
        loss = f"{{_target_:{TARGET},defects:{bits},discrepancy:{bits},molecules:64}}"
        (tmp_path / str(bits)).mkdir()
        config = tiny_config(tmp_path / str(bits), f"model.task.generated_molecules={loss}", *options, "hp.lr=5e-3")
        rows = [row for row in train(config).history if "orphans" in row]
        assert len(rows) > 20
        ends.append([np.mean([row[part] for row in rows[-5:]]) for part, _ in parts])
    for lowered, other, (part, share) in zip(*ends, parts, strict=True):
        assert lowered < share * other, part
