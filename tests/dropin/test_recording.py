"""`record` on RFdiffusion's network and on ours."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from src.dropin.recording import record, report
from tests.dropin import rfdiffusion
from tests.dropin.cases import CASES, OURS, built
from tests.dropin.originals import VARIABLE, clone

IN_GRAPHS = {"IterBlock": 3, "Templ_emb": 1, "Recycling": 1, "MSA_emb": 1, "SCPred": 1}


@pytest.mark.slow
@pytest.mark.skipif(clone("RFdiffusion") is None, reason=f"{VARIABLE} has no RFdiffusion")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of RFdiffusion
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_blocks_of_rfdiffusion_are_graphs(device: str, mode: Any) -> None:
    network = rfdiffusion.network_of(False, n_extra_block=1, n_main_block=2, n_ref_block=2).eval().to(device)
    call, _ = rfdiffusion.step(network, 12, device, torch.float32)
    near = 1e-5 if device == "cpu" else 1e-3  # blocks enlarge the rounding of sums in another order
    with mode():
        expected = call()
        record(network)
        for _ in range(4):
            assert_close(call(), expected, rtol=near, atol=near)
        lines = dict(line.split(": ", 1) for line in report(network).splitlines())
        graphs = {name: int(part.split()[0]) for name, line in lines.items() for part in line.split("; ")
                  if "as graphs" in part}  # fmt: skip
        assert graphs == IN_GRAPHS, report(network)
        assert "SE3Transformer" not in lines and "Str2Str: 3 in a graph around them" in report(network)
        network.simulator.main_block[0].msa2pair.proj_left.weight.mul_(2)
        changed = call()
        record(network, False)
        assert_close(changed, call(), rtol=near, atol=near)
    assert float((changed["pair"] - expected["pair"]).abs().max()) > 1e-3


def test_our_networks_keep_graphs_of_their_own() -> None:
    network = nn.Sequential(built(OURS, CASES[0]), nn.Linear(2, 2))
    assert record(network) is network and report(network) == "Sequential: 1 not called twice alike without gradients"
    assert not any("forward" in part.__dict__ for part in network[0].modules())
