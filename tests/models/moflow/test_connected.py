"""The penalty on molecules in pieces: what it counts, the statistics it uses, and that training on it joins them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch.testing import assert_close

from src.errors import UserError
from src.models.moflow.actnorm import kept_statistics, reused_statistics
from src.models.moflow.connected import Connected, orphans
from src.molecules.encode import encode
from src.molecules.vocabulary import ZINC250K
from src.run import train
from tests.support.tiny_moflow import make_molecules, make_network
from tests.support.tiny_run import SMILES, tiny_config

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
            later = cut[row, row:].any()  # an atom without any bond is none
            behind = [k for k in range(1, len(cut)) if cut[k, k:].any() and not cut[k, :k].any()]
            assert (row in behind) == later
            assert_close(orphans(one_hot(cut)[None])[0].item(), float(len(behind)), rtol=0, atol=LEAK)
            checked += 1
    assert checked > 20


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
    assert all(each is None for norm in flow.modules() for each in (getattr(norm, "kept_mean", None),))


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
        results.append([z, *(each.grad for each in network.bond_flow.parameters()), *network.bond_flow.buffers()])
    assert_close(*results)


def test_the_penalty_is_that_of_the_bonds_that_the_network_draws() -> None:
    network = make_network().train()
    with kept_statistics(network.bond_flow):
        network(*make_molecules(12))
        torch.manual_seed(1)
        found = Connected(molecules=64, temperatures=(0.5, 0.5))(network)
        torch.manual_seed(1)
        torch.rand(64, 1, 1, 1, dtype=torch.float64)
        z = 0.5 * torch.exp(network.ln_var / 2) * torch.randn(64, 4, 4, 4, dtype=torch.float64)
        with reused_statistics(network.bond_flow):
            bonds = network.bond_flow.reverse(z, bound=50)
    bonds = ((bonds + bonds.transpose(2, 3)) / 2)[:, :, :3, :3]  # the atoms that molecules have
    assert_close(found, orphans(bonds).mean().to(found.dtype))
    assert found > 0.01 and bonds.abs().max() <= 50
    found.backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in network.bond_flow.parameters())


@pytest.mark.parametrize("temperatures", [(0.3,), (1.0, 0.3), (0.3, 0.5, 1.0)])
def test_other_temperatures_than_a_least_and_a_greatest_are_refused(temperatures: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"temperatures=.* must be two, the least and the greatest"):
        Connected(temperatures=temperatures)


def test_training_with_it_lowers_the_orphans(tmp_path: Path) -> None:
    """Against the same training in which an orphan weighs next to nothing: the likelihood lowers them too."""
    options = "fit.max_epochs=6", "fit.eval_every_n_epochs=null", "fit.final_evaluation=false", "measure.window=1"
    ends = []
    for weight in (0.1, 1e-9):
        words = f"{{_target_:src.models.moflow.connected.Connected,weight:{weight},molecules:64}}"
        (tmp_path / str(weight)).mkdir()
        record = train(tiny_config(tmp_path / str(weight), f"model.task.connected={words}", *options, "hp.lr=5e-3"))
        found = [row["orphans"] for row in record.history if "orphans" in row]
        assert len(found) > 20
        ends.append(np.mean(found[-5:]))
    assert ends[0] < 0.7 * ends[1], ends
