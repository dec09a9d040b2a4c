"""Adam and AdamW whose large parameters a kernel updates are torch's, in Triton's interpreter."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu import triton_helpers, weight_copies
from src.gpu.weight_copies import WeightCopies
from src.models.distilbert.network import DistilBert
from src.models.distilbert.task import DistilBertTask
from src.training import adam

CLASSES = [torch.optim.Adam, torch.optim.AdamW]
# The third large one is channels last, the fourth transposed. For torch: not a multiple of 4 elements, not aligned.
LARGE, SMALL, TORCHS = [(40, 100), (1030, 4), (4, 7, 10, 10), (64, 32)], [(3, 4), (8,)], [(33, 33), (50, 40)]
SHAPES = [*SMALL, *LARGE, *TORCHS]
STEPS = 4


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})
    monkeypatch.setattr(adam, "LARGE", 1000)


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """Returns a list that fills with the shapes of the parameters of each launch."""
    launches: list[list[tuple[int, ...]]] = []
    plain = adam.update

    def update(table: Tensor, rows: list[tuple[Tensor, ...]], *others: Any) -> None:
        launches.append([tuple(row[0].shape) for row in rows])
        plain(table, rows, *others)

    monkeypatch.setattr(adam, "update", update)
    return launches


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    values[4] = values[4].to(memory_format=torch.channels_last)
    values[5] = values[5].T.contiguous().T
    return [nn.Parameter(value) for value in values]


def give_gradients(parameters: list[nn.Parameter], step: int, factor: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator) * factor
        parameter.grad = torch.empty_like(parameter).copy_(gradient)
    parameters[-1].grad = torch.zeros(2001)[1:].view(SHAPES[-1]).copy_(parameters[-1].grad)  # type: ignore[arg-type]


def made(kind: type[torch.optim.Adam], parameters: Any, ours: bool, **options: Any) -> torch.optim.Adam:
    optimizer = kind(parameters, fused=True, **options)
    if ours:
        adam.use_kernels(optimizer)
    return optimizer


def state_of(optimizer: torch.optim.Adam, parameters: list[nn.Parameter]) -> list[Tensor]:
    states = [optimizer.state[parameter] for parameter in parameters]
    return [*(p.detach() for p in parameters), *(s[name] for s in states for name in ("step", "exp_avg", "exp_avg_sq"))]


def assert_near(ours: Any, torchs: Any) -> None:
    torch.testing.assert_close(ours, torchs, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.3, "betas": (0.8, 0.99), "eps": 1e-3}, {"betas": (0.0, 0.0)}]
)
@pytest.mark.parametrize("rate", [partial(torch.tensor, 0.1), partial(float, 0.1)])
def test_its_steps_are_torchs(
    kind: type[torch.optim.Adam], options: dict[str, Any], rate: Any, updated: list[list[tuple[int, ...]]]
) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer = made(kind, parameters, ours, lr=rate(), **options)
        for step in range(STEPS):
            give_gradients(parameters, step)
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert updated == [LARGE, SMALL] * STEPS


@pytest.mark.parametrize("kind", CLASSES)
def test_gradients_are_divided_and_a_step_that_overflowed_is_skipped(kind: type[torch.optim.Adam]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer: Any = made(kind, parameters, ours, weight_decay=0.1, lr=0.1)
        for step, overflows in enumerate((True, False, True, False)):
            give_gradients(parameters, step, torch.inf if overflows else 48.0)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(48.0), torch.tensor(float(overflows))
            before = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
            optimizer.step()
            if ours:
                assert torch.equal(before[0], parameters[0].grad)  # type: ignore[arg-type]
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert float(results[0][len(SHAPES)]) == 2


def test_a_parameter_that_came_later_has_a_step_of_its_own_as_has_a_group() -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01, "weight_decay": 0.0}]
        optimizer = made(torch.optim.AdamW, groups, ours, lr=0.1)
        for step in range(STEPS):
            give_gradients(parameters, step)
            if step < 2:
                parameters[3].grad = None
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert float(results[0][len(SHAPES) + 3 * 3]) == STEPS - 2


def test_a_group_of_one_parameter_is_updated() -> None:
    results = []
    for ours in (True, False):
        parameter = weights()[2]
        parameter.grad = torch.ones_like(parameter)
        optimizer = made(torch.optim.Adam, [parameter], ours, lr=0.1)
        optimizer.step()
        results.append(state_of(optimizer, [parameter]))
    assert_near(*results)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_state_saved_by_one_goes_on_in_the_other(kind: type[torch.optim.Adam]) -> None:
    results = []
    for order in ((True, False), (False, True), (False, False)):
        parameters, saved, states = weights(), None, list[Tensor]()
        for leg, ours in enumerate(order):
            optimizer = made(kind, parameters, ours, lr=0.1)
            if saved is not None:
                optimizer.load_state_dict(saved)
            give_gradients(parameters, leg)
            optimizer.step()
            saved = copy.deepcopy(optimizer.state_dict())
            states = state_of(optimizer, parameters)
        results.append(states)
    assert_near(results[0], results[2])
    assert_near(results[1], results[2])


@pytest.mark.parametrize("option", ["amsgrad", "maximize", "plain"])
def test_what_the_kernel_does_not_have_is_torchs(option: str, updated: list[list[tuple[int, ...]]]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer = made(torch.optim.Adam, parameters, ours, lr=0.1, **{option: True} if option != "plain" else {})
        if option == "plain":
            optimizer.param_groups[0]["fused"] = False
        for step in range(2):
            give_gradients(parameters, step)
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert not updated
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_kept_copies_are_written_with_the_weights(updated: list[list[tuple[int, ...]]]) -> None:
    """Also those of torch's parameters; a skipped step leaves both, and weights without copies are updated too."""
    parameters = weights()
    copied = [parameters[i] for i in (1, 2, 4, 6)]
    copies = [torch.empty_like(parameter, dtype=torch.float16) for parameter in copied]
    optimizer: Any = made(torch.optim.AdamW, parameters, True, lr=0.1)
    with WeightCopies().active():
        weight_copies.cast(copied, torch.float16, lambda: (copies, copies))
        for step, overflows in enumerate((False, True, False)):
            give_gradients(parameters, step)
            optimizer.found_inf, before = torch.tensor(float(overflows)), copies[1].clone()
            optimizer.step()
            for parameter, target in zip(copied, copies, strict=True):
                assert torch.equal(target, parameter.to(torch.float16))
            assert torch.equal(before, copies[1]) == overflows
    assert updated == [LARGE, SMALL] * 3
    others = weights()
    plain = made(torch.optim.AdamW, others, True, lr=0.1)
    for step in (0, 2):
        give_gradients(others, step)
        plain.step()
    assert_near(list(map(Tensor.detach, parameters)), list(map(Tensor.detach, others)))


def test_kernels_are_given_floats_where_settings_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would compile others, which no list has."""
    arguments: list[Any] = []
    monkeypatch.setattr(adam, "launch", lambda kernel, grid, *others, **constants: arguments.extend(others))
    parameters = weights()
    give_gradients(parameters, 0)
    parameters = parameters[2:4]
    made(torch.optim.Adam, parameters, True, lr=1, weight_decay=0, eps=0).step()
    assert [value for value in arguments if type(value) is int] == [len(parameters)]


def test_an_optimiser_keeps_its_class_hooks_and_closure() -> None:
    parameters = weights()
    optimizer = made(torch.optim.AdamW, parameters, True, lr=0.1)
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("hook"))

    def closure() -> Tensor:
        calls.append("closure")
        loss = torch.stack([parameter.square().sum() for parameter in parameters]).sum()
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)
    assert type(optimizer) is torch.optim.AdamW and calls == ["closure", "hook"] and float(loss.detach()) > 0
    other = torch.optim.SGD(parameters, lr=0.1)
    adam.use_kernels(other)
    assert "step" not in vars(other)


@pytest.mark.parametrize(
    ("kernels", "is_used"),
    [("auto", True), (["adam"], True), (["layer"], False), (["layer", "adam"], True), ("off", False)],
)
def test_execution_kernels_switches_it(kernels: Any, is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"dim": 12, "n_heads": 2, "n_layers": 1, "hidden_dim": 24, "vocab_size": 30}
    task = DistilBertTask(lambda sizes: DistilBert(sizes), partial(torch.optim.AdamW, lr=0.1), sizes=sizes)
    task.accelerate(kernels)
    assert "step" not in vars(task.configure_optimizers())  # on a CPU
    monkeypatch.setattr(task, "fast_optimizer_flags", lambda: {"fused": True})
    assert ("step" in vars(task.configure_optimizers())) == is_used
