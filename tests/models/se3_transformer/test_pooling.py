"""Pooling over the nodes of each molecule, against a loop."""

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.models.se3_transformer import pool
from src.models.se3_transformer.pooling import Pooling, check_pooling
from tests.support.se3_small import seeded

GRAPH_PTR = torch.tensor([0, 3, 4, 4, 6, 6, 6])  # molecules of 3, 1, 0, 2 atoms and two padded ones
NODES = 9  # three of them padded


def random_nodes() -> torch.Tensor:
    return (
        torch.randn(NODES, 5, dtype=torch.float64, generator=seeded(3)) - 3
    )  # negative, so that a 0 would be the maximum


@pytest.mark.parametrize("pointer", [GRAPH_PTR, GRAPH_PTR.int()])
@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_pooling_equals_a_loop_over_molecules(kind: Pooling, pointer: torch.Tensor) -> None:
    features = random_nodes()
    expected = torch.zeros(6, 5, dtype=torch.float64)
    for graph in (0, 1, 3):
        rows = features[GRAPH_PTR[graph] : GRAPH_PTR[graph + 1]]
        expected[graph] = rows.amax(0) if kind == "max" else getattr(rows, kind)(0)
    assert_close(pool(features, pointer, kind), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_empty_and_padded_molecules_give_zero_with_zero_gradient(kind: Pooling) -> None:
    features = random_nodes().requires_grad_()
    result = pool(features, GRAPH_PTR, kind)
    assert not result[[2, 4, 5]].any()
    result[[2, 4, 5]].sum().backward(retain_graph=True)
    assert features.grad is not None and not features.grad.any()
    result.square().sum().backward()
    assert features.grad.isfinite().all() and features.grad[:6].any() and not features.grad[6:].any()


def test_the_gradient_of_a_maximum_goes_to_the_first_node_that_has_it() -> None:
    features = torch.tensor([[1.0, 5.0], [2.0, 4.0], [2.0, 5.0]], requires_grad=True)
    pool(features, torch.tensor([0, 3]), "max").sum().backward()
    assert features.grad is not None
    assert torch.equal(features.grad, torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_gradients_equal_numerical_ones(kind: Pooling) -> None:
    features = random_nodes().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: pool(x, GRAPH_PTR, kind), features)


@pytest.mark.parametrize("kind", ["max", "mean", "sum"])
def test_nan_affects_its_molecule_only(kind: Pooling) -> None:
    features = random_nodes()
    features[1, 2] = torch.nan
    result = pool(features, GRAPH_PTR, kind)
    assert result.isnan().nonzero().tolist() == [[0, 2]]


def test_float16_is_summed_in_a_wider_type() -> None:
    """The sum overflows float16, the mean does not."""
    result = pool(torch.full((4000, 1), 100, dtype=torch.float16), torch.tensor([0, 4000]), "mean")
    assert result.dtype == torch.float16 and result.item() == 100


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_sum_does_not_depend_on_the_order_of_the_nodes(kind: Pooling, dtype: torch.dtype) -> None:
    """A GPU adds in any order."""
    molecules, nodes = 500, 18
    features = torch.randn(molecules, nodes, 128, generator=seeded(4))
    features = (features * torch.randn(features.shape, generator=seeded(5)).mul(3).exp()).clamp(-6e4, 6e4).to(dtype)
    shuffled = features[:, torch.randperm(nodes, generator=seeded(6))]
    pointer = torch.arange(molecules + 1) * nodes
    assert torch.equal(*(pool(x.flatten(0, 1), pointer, kind) for x in (features, shuffled)))


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(UserError, match="pooling=avg must be one of max, mean, sum"):
        check_pooling("avg")
