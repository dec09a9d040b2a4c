"""MoFlow's fast modules in the place of its plain ones. Imports no Triton itself: a test of the contract asks."""

import subprocess
import sys
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from src.models.moflow import MoFlow, fast
from src.models.moflow.actnorm import kept_statistics, reused_statistics
from src.models.moflow.network import Latent
from tests.support.kernels_contract import KernelsContract
from tests.support.tiny_moflow import make_molecules, make_network

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
from tests.models.moflow.test_replacements import TestPublished as Contract
network = Contract().accelerated("auto")
assert {type(module).__name__ for module in network.modules()} > {"FastConv3x3", "FastGraphConv", "FastAtomStep"}
Contract().loss(network, torch.float32).backward()
"""


class Replacements(KernelsContract):
    """The loss is of training, with fixed noise, and of atoms that are decoded from fixed latents.

    Where BatchNorm keeps its statistics for these, the atom flow is plain: so it runs without that, too.
    """

    replacements = fast.REPLACEMENTS
    rounded = ("conv", "graph_conv")
    without_kernels = ("graph_conv",)

    def loss(self, network: nn.Module, dtype: torch.dtype) -> Tensor:
        moflow, generator = cast(MoFlow, network), torch.Generator().manual_seed(1)
        x, adj = moflow.one_hot(*make_molecules(6))
        noise = [torch.rand(part.shape, generator=generator, dtype=torch.float64).to(dtype) for part in (x, adj)]
        with kept_statistics(moflow):
            z_atom, logdet_atom = moflow.atom_flow(x + noise[0], adj)
            z_bond, logdet_bond = moflow.bond_flow(adj + noise[1])
            with reused_statistics(moflow):
                decoded = moflow.continuous_atoms(noise[0], adj)
        likelihood = moflow.loss(Latent(z_atom, z_bond, logdet_atom, logdet_bond))
        latent, log_det = moflow.atom_flow(noise[0], adj)
        return likelihood + decoded.square().mean() + latent.sin().mean() - log_det.mean()


class TestPublished(Replacements):
    def network(self) -> MoFlow:
        return make_network(kernels="off").float()


class TestExact(Replacements):
    def network(self) -> MoFlow:
        return make_network(kernels="off", logdet="exact").float()


@pytest.mark.slow
def test_the_fast_products_need_no_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)
