"""The formulas against torch's FLOP counter, at full width (with fake tensors, which compute nothing)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from src.models.moflow.atom import LogDet
from src.models.moflow.cost import Counting, bytes_per_sample, cost, flops_per_sample
from src.models.moflow.fast import accelerate
from src.models.moflow.network import MoFlow
from tests.support.tiny_moflow import QM9, steps_of

pytestmark = pytest.mark.slow

ROTATED = {"conv_lu": 0}


def counted(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("counting", ["plain", "fast"])
@pytest.mark.parametrize("logdet", ["published", "exact"])
@pytest.mark.parametrize("sizes", [{}, QM9, ROTATED], ids=["zinc", "qm9", "zinc with 1x1 convolutions"])
def test_formula_equals_torchs_count(sizes: dict[str, Any], logdet: LogDet, counting: Counting) -> None:
    batch = 4
    with FakeTensorMode():
        network = MoFlow(**{**sizes, "num_bond_flows": 2, "num_atom_flows": 3, "logdet": logdet})
        accelerate(network, "auto" if counting == "fast" else "off")
        atoms = network.max_atoms
        molecules = torch.zeros(batch, atoms, dtype=torch.uint8), torch.zeros(batch, atoms, atoms, dtype=torch.uint8)
        latent = network.eval()(*molecules)
        forward = counted(lambda: network(*molecules))
        training = counted(lambda: network.loss(network(*molecules)).backward())
        sampling = counted(lambda: network.decode(latent.z_atom, latent.z_bond))
        # Products that form a weight are counted once per step, not per sample.
        convs = [step.conv for step in steps_of(network.bond_flow) if step.conv is not None]
        weight_flops = sum(counted(conv.matrix) for conv in convs)
    flops = flops_per_sample(network, counting)
    assert forward == batch * flops.forward + weight_flops
    assert training == batch * flops.training + 3 * weight_flops
    assert sampling == batch * flops.sampling + weight_flops


def test_useful_work_of_the_published_model() -> None:
    with torch.device("meta"):
        published, exact = MoFlow(), MoFlow(logdet="exact")
    assert flops_per_sample(published).training == pytest.approx(3.30e9, rel=2e-3)
    assert flops_per_sample(published, "plain").training == pytest.approx(5.09e9, rel=2e-3)
    assert flops_per_sample(exact).training < 0.5 * flops_per_sample(published).training
    # The bonds' useful taps are 16 of the 36 that a convolution computes.
    taps = 4 * (800 * 512 + 512 * 512 + 512 * 1600) * 4
    assert flops_per_sample(exact).sampling == pytest.approx(2 * 10 * taps, rel=0.05)


def test_parameter_bytes_per_sample_shrink_with_the_batch() -> None:
    with torch.device("meta"):
        network = MoFlow()
    small, large = (bytes_per_sample(network, size, 2) for size in (512, 1024))
    parameters = 141_108_089
    assert small[0] - large[0] == pytest.approx(4 * parameters / 1024)
    assert small[1] - large[1] == pytest.approx(40 * parameters / 1024)
    outputs = 10 * 4 * (512 + 512 + 1600) + 38 * 40 * (256 + 512 + 64 + 20)
    latents = 10 * 6400 + 38 * 400
    assert small[1] == pytest.approx(5 * (2 * outputs + 4 * latents) + 40 * parameters / 512)
    full = cost(network, 512, 2)
    assert (full.bytes_forward, full.bytes_training) == small and full.flops_training > full.flops_forward
