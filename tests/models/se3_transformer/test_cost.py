"""The formulas against torch's FLOP counter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from src.batches.molecular_graphs import Graph
from src.models.se3_transformer.cost import QM9, Molecule, bytes_per_molecule, cost, macs_per_molecule
from src.models.se3_transformer.network import SE3TransformerPooled
from tests.support.se3_flops import basis_macs, gradient_to_data

SMALL: dict[str, Any] = {"num_channels": 8, "num_heads": 4}


def counted(function: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 2, "num_degrees": 4},
        {"num_layers": 3, "num_degrees": 3, "use_layer_norm": False, "pooling": "mean"},
        {"num_layers": 2, "num_degrees": 2, "sharing": "pairwise", "channels_div": 1},
        {"num_layers": 1, "num_degrees": 1},
        {"num_layers": 0, "num_degrees": 2},
    ],
    ids=str,
)
def test_formula_equals_torchs_count(sizes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = SE3TransformerPooled(**{**SMALL, **sizes})
    nodes, edges = 5, 12
    here = torch.randint(nodes, (edges,))
    graph = Graph.build(torch.randn(nodes, 3), here, (here + torch.randint(1, nodes, (edges,))) % nodes)
    features = torch.randn(nodes, 6), torch.randn(edges, 4)
    network(graph, *features)  # fills caches
    predicted: list[torch.Tensor] = []
    forward = counted(lambda: predicted.append(network(graph, *features)))
    backward = counted(lambda: predicted[0].sum().backward())
    costs = cost(network, Molecule(nodes, edges), 1, 4)
    basis = 2 * basis_macs(edges, network.transformer.max_degree)
    assert forward == costs.flops_forward + basis
    assert forward + backward == costs.flops_training + basis + gradient_to_data(network, nodes)


def test_useful_work_of_the_published_model() -> None:
    with torch.device("meta"):
        network = SE3TransformerPooled()
    macs = macs_per_molecule(network, QM9)
    # By hand: 1.44 M for radial weights, 0.035 M for features times basis, 0.22 M to apply the weights to these.
    layer = 45_056 * 32 + 32 * (1092 - 84 // 2) + 216 * 32 * 32
    assert macs.forward / QM9.edges == pytest.approx(6 * layer, rel=0.1)
    assert cost(network, QM9, 240, 2).flops_training == pytest.approx(2.41e9, rel=2e-3)


def test_parameter_bytes_per_molecule_shrink_with_the_batch() -> None:
    with torch.device("meta"):
        network = SE3TransformerPooled()
    parameters = 9_279_553
    small, large = (bytes_per_molecule(network, QM9, size, 2) for size in (240, 480))
    assert small[0] - large[0] == pytest.approx(4 * parameters / 480)
    assert small[1] - large[1] == pytest.approx(40 * parameters / 480)
    per_edge = (256 + 16) + 6 * 512
    per_node = (256 + 16 + 1024) + 6 * (512 + 1024) + 128
    numbers = QM9.edges * per_edge + QM9.nodes * per_node
    assert small[0] == pytest.approx(2 * 2 * numbers + 4 * parameters / 240)
    assert small[1] == pytest.approx(5 * 2 * numbers + 40 * parameters / 240)
