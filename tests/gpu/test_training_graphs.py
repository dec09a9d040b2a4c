"""Who has the memory of gradients and activations, on a CPU: replays run the recorded function again."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from src.gpu import training_graphs
from src.gpu.gradient_memory import GradientMemory
from src.gpu.hooks import parts_of
from tests.support.rerun_graphs import rerun_graphs  # noqa: F401


class Product(nn.Module):
    """Returns a loss and its parts; one parameter is never used."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 4, generator=generator).t())
        self.bias = nn.Parameter(torch.randn(3, generator=generator))
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def function(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            parts = (inputs[0] @ weights[0] + weights[1]).exp()
            return parts.mean(), parts

        return training_graphs.run(self, function, [x], list(self.parameters()), None)


def batch(seed: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def module(rerun_graphs: None) -> Product:  # noqa: F811
    """Returns a module with graphs."""
    module = Product()
    for seed in range(4):
        module(batch(seed))[0].backward()
    module.zero_grad()
    assert graphs_of(module).replays == 1
    return module


def graphs_of(module: nn.Module) -> training_graphs.TrainingGraphs:
    return training_graphs._of_module[module]


def memory_of(module: nn.Module) -> GradientMemory:
    (pair,) = graphs_of(module).pairs.values()
    assert pair is not None
    return pair.memory


def wanted(seeds: Sequence[int], like: nn.Module) -> dict[str, Tensor]:
    """Returns the sum of gradients of these batches, by plain torch."""
    other = Product()
    other.load_state_dict(like.state_dict())
    for seed in seeds:
        other.eval()(batch(seed))[0].backward()
    return gradients(other)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_a_gradient_is_the_graphs_memory_itself(module: Product) -> None:
    module(batch(7))[0].backward()
    torch.testing.assert_close(gradients(module), wanted([7], module))
    slots = memory_of(module).slots
    assert module.weight.grad is not None and slots[0] is not None
    assert module.weight.grad.data_ptr() == slots[0].data_ptr()
    assert module.weight.grad.stride() == module.weight.stride()
    assert module.unused.grad is None


def test_accumulated_gradients_are_sums(module: Product) -> None:
    for seed in (7, 8, 9):
        module(batch(seed))[0].backward()
    torch.testing.assert_close(gradients(module), wanted([7, 8, 9], module))
    module.zero_grad(set_to_none=False)
    module(batch(3))[0].backward()
    torch.testing.assert_close(gradients(module), wanted([3], module))


def test_gradients_that_somebody_keeps_do_not_change(module: Product) -> None:
    kept = []
    for seed in (7, 8):
        kept.append(torch.autograd.grad(module(batch(seed))[0], [module.weight, module.bias]))
    for seed, of_batch in zip((7, 8), kept, strict=True):
        torch.testing.assert_close(of_batch, tuple(wanted([seed], module).values()))
    module(batch(9))[0].backward()
    assert module.bias.grad is not None
    view = module.bias.grad[1:]
    module.zero_grad()
    module(batch(7))[0].backward()
    torch.testing.assert_close(view, wanted([9], module)["bias"][1:])


def test_the_optimisers_change_of_weights_is_read(module: Product) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for seed in range(7, 10):
        before = deepcopy(module)
        module(batch(seed))[0].backward()
        torch.testing.assert_close(gradients(module), wanted([seed], before))
        optimizer.step()
        optimizer.zero_grad()
    assert graphs_of(module).replays == 4


def test_a_weight_changed_before_the_backward_pass_is_refused(module: Product) -> None:
    loss = module(batch(7))[0]
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_outputs_stay_after_later_replays_and_may_each_be_differentiated(module: Product) -> None:
    loss, parts = module(batch(7))
    before = loss.detach().clone()
    (loss + parts[0].sum()).backward()
    both = gradients(module)
    other = Product()
    other.load_state_dict(module.state_dict())
    plain, of_plain = other.eval()(batch(7))
    (plain + of_plain[0].sum()).backward()
    torch.testing.assert_close(both, gradients(other))
    module.zero_grad()
    module(batch(8))[0].backward()  # the gradient of `parts` is zero again
    torch.testing.assert_close(gradients(module), wanted([8], module))
    assert torch.equal(loss.detach(), before)


def test_a_second_forward_pass_or_one_without_gradients_leaves_the_activations(module: Product) -> None:
    replays = graphs_of(module).replays
    first = module(batch(7))[0]
    second = module(batch(8))[0]
    with torch.no_grad():
        module(batch(9))
    assert graphs_of(module).replays == replays + 1
    (first + second).backward()
    torch.testing.assert_close(gradients(module), wanted([7, 8], module))


def test_a_frozen_parameter_has_no_gradient_and_a_changed_shape_its_own_graphs(module: Product) -> None:
    module.bias.requires_grad_(False)
    for seed in range(5):
        module.zero_grad()
        module(batch(seed))[0].backward()
    assert module.bias.grad is None and len(graphs_of(module).pairs) == 2
    torch.testing.assert_close(gradients(module)["weight"], wanted([4], module)["weight"])
    module.zero_grad()
    module(batch(7)[:2])[0].backward()
    assert len(graphs_of(module).pairs) == 2


def test_parts_are_listed_again_after_one_was_replaced() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert parts_of(module).parameters(module) == [*module.parameters()] and parts_of(module) is parts_of(module)
    assert parts_of(module).are_plain(training=True) and not parts_of(module).are_plain(training=False)
    module[1][0] = nn.Linear(2, 3)  # type: ignore[index]
    assert [*map(id, parts_of(module).parameters(module))] == [*map(id, module.parameters())]
    module[1][1].register_forward_hook(lambda *_: None)  # type: ignore[index]
    assert not parts_of(module).are_plain(training=True)


def test_without_room_for_graphs_it_runs_eagerly(rerun_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    tries = []

    def record(*_: object) -> None:
        tries.append(1)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(training_graphs, "record", record)
    module = Product()
    for seed in range(6):
        module.zero_grad()
        module(batch(seed))[0].backward()
        torch.testing.assert_close(gradients(module), wanted([seed], module))
    assert graphs_of(module).replays == 0 and len(tries) == 1
