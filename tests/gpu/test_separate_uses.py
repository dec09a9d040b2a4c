"""Gradients of several uses are added together: the same sums, few launches, and modules as they were."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from src.gpu.separate_uses import separate_uses


class Shared(nn.Module):
    """A network with a shared parameter, one that only the first use reads, a frozen one and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.bias = self.first.bias
        self.only, self.unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor, reads_all: bool) -> Tensor:
        y = self.second(self.first(x).tanh()) * self.fixed
        return (y * self.only if reads_all else y).square().sum()


class Additions(TorchDispatchMode):
    """Counts additions of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        self.counts[name] += "add" in name
        return func(*args, **(kwargs or {}))


@pytest.fixture
def network() -> Shared:
    torch.manual_seed(0)
    return Shared()


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """Returns copies of the gradients, and removes them."""
    taken = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return taken


@pytest.mark.parametrize("backward_passes", [1, 2])
def test_parameters_get_the_sum_of_their_uses_gradients(network: Shared, backward_passes: int) -> None:
    x, y = torch.randn(2, 4, 3)
    for _ in range(backward_passes):
        (network(x, True) + 3 * network(y, False)).backward()
    expected = gradients(network)
    for _ in range(backward_passes):
        one, two = separate_uses(network, 2)
        with one:
            loss = network(x, True)
        with two:
            loss = loss + 3 * network(y, False)
        loss.backward()
    taken = gradients(network)
    assert taken.keys() == expected.keys() == {"first.weight", "first.bias", "second.weight", "only"}
    assert_close(taken, expected)


def test_they_are_added_together(network: Shared) -> None:
    x = torch.randn(4, 3)
    counts = list[Counter[str]]()
    for separate in (False, True):
        one, two = separate_uses(network, 2)
        if separate:
            with one:
                loss = network(x, False)
            with two:
                other = network(x, False)
        else:
            loss, other = network(x, False), network(x, False)
        with Additions() as additions:
            torch.autograd.backward([loss, other])
        counts.append(additions.counts)
    assert (counts[0]["add"], counts[1]["add"]) == (5, 2)  # each use adds two of the shared bias
    assert (counts[0]["_foreach_add"], counts[1]["_foreach_add"]) == (0, 1)


def test_modules_have_their_parameters_again(network: Shared) -> None:
    before = dict(network.named_parameters(remove_duplicate=False))
    use, _ = separate_uses(network, 2)
    with pytest.raises(KeyError), use:
        assert isinstance(network.first.bias, Tensor) and network.first.bias is network.second.bias
        assert network.first.bias is not before["first.bias"]
        assert network.first.bias.data_ptr() == before["first.bias"].data_ptr()
        raise KeyError
    after = dict(network.named_parameters(remove_duplicate=False))
    assert after.keys() == before.keys() and all(after[name] is p for name, p in before.items())
