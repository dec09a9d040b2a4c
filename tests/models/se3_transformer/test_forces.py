"""Forces: numerical gradient, equivariance, and training on them."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from src.batches.molecular_graphs import Graph
from src.errors import UserError
from src.models.se3_transformer import Fiber, SE3TransformerPooled, energy_and_forces, fast
from tests.support.se3_small import moved, random_features, random_graph, rotated

NODES, EDGES = Fiber({0: 6}), Fiber({0: 4})


def small_network() -> SE3TransformerPooled:
    torch.manual_seed(0)
    return fast.accelerate(SE3TransformerPooled(2, 3, 4, 2, pooling="sum").double())


def inputs() -> tuple[Graph, dict[int, Tensor], dict[int, Tensor]]:
    graph = random_graph((4, 1, 3))
    return graph, random_features(NODES, len(graph.positions)), random_features(EDGES, len(graph.src))


@pytest.mark.slow
def test_forces_equal_the_numerical_gradient_of_the_energy() -> None:
    network, (graph, nodes, edges) = small_network(), inputs()
    energy, forces = energy_and_forces(network, graph, nodes, edges)
    assert_close(energy, network(graph, nodes, edges)[:, 0], rtol=0, atol=1e-10)
    expected, step = torch.zeros_like(forces), 1e-5
    for atom in range(len(forces)):
        for axis in range(3):
            ends = []
            for sign in (1, -1):
                positions = graph.positions.clone()
                positions[atom, axis] += sign * step
                ends.append(network(graph._replace(positions=positions), nodes, edges).sum().item())
            expected[atom, axis] = (ends[1] - ends[0]) / (2 * step)
    assert forces.abs().max() > 1e-3
    assert_close(forces, expected, rtol=0, atol=1e-7)


def test_forces_are_equivariant_and_sum_to_zero() -> None:
    network, (graph, nodes, edges) = small_network(), inputs()
    energy, forces = energy_and_forces(network, graph, nodes, edges)
    moved_energy, moved_forces = energy_and_forces(network, moved(graph), nodes, edges)
    assert_close(moved_energy, energy, rtol=0, atol=1e-10)
    assert_close(moved_forces, rotated({1: forces[:, None]})[1][:, 0], rtol=0, atol=1e-10)
    assert_close(torch.stack([part.sum(0) for part in forces.split([4, 1, 3])]), torch.zeros(3, 3).double())
    assert not forces[4].any() and not forces.requires_grad and not energy.requires_grad


def test_a_loss_on_forces_has_the_numerical_gradient() -> None:
    network, (graph, nodes, edges) = small_network(), inputs()
    parameters, target = list(network.parameters()), graph.positions.sin()

    def loss() -> Tensor:
        energy, forces = energy_and_forces(network, graph, nodes, edges, create_graph=True)
        return (energy - 1).square().sum() + (forces - target).square().sum()

    plain = energy_and_forces(network, graph, nodes, edges)
    assert_close(energy_and_forces(network, graph, nodes, edges, create_graph=True), plain, rtol=0, atol=1e-14)
    gradients = torch.autograd.grad(loss(), parameters)
    torch.manual_seed(1)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    ends = []
    for step in (1e-6, -2e-6):
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.data += step * direction
        ends.append(loss().item())
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_a_graph_without_edges_has_no_forces() -> None:
    network, none = small_network(), torch.zeros(0, dtype=torch.int64)
    graph = Graph.build(torch.zeros(2, 3, dtype=torch.float64), none, none, [1, 1])
    _, forces = energy_and_forces(network, graph, torch.ones(2, 6).double(), torch.ones(0, 4).double())
    assert not forces.any()


def test_a_network_with_several_outputs_is_refused() -> None:
    network = SE3TransformerPooled(1, 2, 4, 2, output_dim=2).double()
    with pytest.raises(UserError, match="a network with 2 outputs has no single energy: set output_dim=1"):
        energy_and_forces(network, *inputs())
