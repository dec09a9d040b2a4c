"""SGD whose parameters a kernel updates is torch's, in Triton's interpreter."""

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
from src.training import sgd, update_kernels
from src.training.tables import Tables
from src.training.task import begin_momentum

# The third is channels last, the fourth has a gradient of other strides in dimensions of one element. For torch: not a
# multiple of 4 elements, a gradient that is not aligned, a gradient of another layout.
TAKEN, TORCHS = [(40, 100), (3, 4), (4, 7, 10, 10), (64, 32, 1, 1), (0, 4)], [(33, 33), (50, 40), (8, 4)]
SHAPES = [*TAKEN, *TORCHS]
SETTINGS = [
    {},
    {"weight_decay": 0.3},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_helpers, "devices", {"cuda", "cpu"})


@pytest.fixture
def updated(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, ...]]]:
    """Returns a list that fills with the shapes of the parameters of each launch."""
    launches: list[list[tuple[int, ...]]] = []
    plain = sgd.update

    def update(table: Tensor, rows: list[Any], *others: Any) -> None:
        launches.append([tuple(row[0].shape) for row in rows])
        plain(table, rows, *others)

    monkeypatch.setattr(sgd, "update", update)
    return launches


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    values[2] = values[2].to(memory_format=torch.channels_last)
    return [nn.Parameter(value) for value in values]


def give_gradients(parameters: list[nn.Parameter], step: int, factor: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step + 1)
    for parameter in parameters:
        gradient = torch.randn(parameter.shape, generator=generator) * factor
        parameter.grad = torch.empty_like(parameter).copy_(gradient)
    one, unaligned, other = (parameters[i].grad for i in (3, 6, 7))
    assert one is not None and unaligned is not None and other is not None
    parameters[3].grad = one.reshape(64, 1, 1, 32).permute(0, 3, 1, 2)
    parameters[6].grad = torch.zeros(2001, dtype=unaligned.dtype)[1:].view(50, 40).copy_(unaligned)
    parameters[7].grad = other.T.contiguous().T


def made(parameters: Any, ours: bool, **options: Any) -> torch.optim.SGD:
    optimizer = torch.optim.SGD(parameters, fused=True, **options)
    if not options.get("dampening"):
        begin_momentum(optimizer)
    if ours:
        sgd.use_kernels(optimizer)
    return optimizer


def state_of(optimizer: torch.optim.SGD, parameters: list[nn.Parameter]) -> list[Tensor]:
    buffers = [optimizer.state[p]["momentum_buffer"] for p in parameters if "momentum_buffer" in optimizer.state[p]]
    return [*(p.detach() for p in parameters), *buffers]


def assert_near(ours: Any, torchs: Any) -> None:
    torch.testing.assert_close(ours, torchs, rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rate", [partial(torch.tensor, 0.1), partial(float, 0.1)])
def test_its_steps_are_torchs(settings: dict[str, Any], rate: Any, updated: list[list[tuple[int, ...]]]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer = made(parameters, ours, lr=rate(), **settings)
        for step in range(3):
            give_gradients(parameters, step)
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert updated == [TAKEN] * 3


@pytest.mark.parametrize("settings", SETTINGS[1:])
def test_gradients_are_divided_and_a_step_that_overflowed_is_skipped(settings: dict[str, Any]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer: Any = made(parameters, ours, lr=0.1, **settings)
        for step, overflows in enumerate((True, False, True, False)):
            give_gradients(parameters, step, torch.inf if overflows else 48.0)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(48.0), torch.tensor(float(overflows))
            before = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
            optimizer.step()
            if ours:
                assert torch.equal(before[0], parameters[0].grad)  # type: ignore[arg-type]
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert all(bool(value.isfinite().all()) for value in results[0])


def test_a_group_has_settings_of_its_own_and_a_parameter_without_a_gradient_stays() -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01, "momentum": 0.5}]
        optimizer = made(groups, ours, lr=0.1)
        for step in range(3):
            give_gradients(parameters, step)
            parameters[step].grad = None
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert_near(*results)


def test_a_state_saved_by_one_goes_on_in_the_other() -> None:
    results = []
    for order in ((True, False), (False, True), (False, False)):
        parameters, saved, states = weights(), None, list[Tensor]()
        for leg, ours in enumerate(order):
            optimizer = made(parameters, ours, lr=0.1, momentum=0.9)
            if saved is not None:
                optimizer.load_state_dict(saved)
            give_gradients(parameters, leg)
            optimizer.step()
            saved = copy.deepcopy(optimizer.state_dict())
            states = state_of(optimizer, parameters)
        results.append(states)
    assert_near(results[0], results[2])
    assert_near(results[1], results[2])


@pytest.mark.parametrize(
    "options", [{"dampening": 0.5, "momentum": 0.9}, {"maximize": True}, {"plain": True}, {"double": True}]
)
def test_what_the_kernel_does_not_have_is_torchs(options: dict[str, Any], updated: list[list[tuple[int, ...]]]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        if "double" in options:
            parameters = [nn.Parameter(parameter.double()) for parameter in parameters]
        flags = {name: value for name, value in options.items() if name not in ("plain", "double")}
        optimizer = made(parameters, ours, lr=0.1, **flags)
        optimizer.param_groups[0]["fused"] = "plain" not in options
        for step in range(2):
            give_gradients(parameters, step)
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert not updated
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_momentum_that_nothing_has_begun_begins_with_the_gradient(updated: list[list[tuple[int, ...]]]) -> None:
    results = []
    for ours in (True, False):
        parameters = weights()
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True)
        if ours:
            sgd.use_kernels(optimizer)
        for step in range(2):
            give_gradients(parameters, step)
            optimizer.step()
        results.append(state_of(optimizer, parameters))
    assert_near(*results)
    assert updated == [TAKEN]  # torch's first step


def test_kept_copies_are_written_with_the_weights() -> None:
    """Also those of torch's parameters; a skipped step leaves both, and weights without copies are updated too."""
    parameters = weights()
    copied = [parameters[i] for i in (1, 2, 3, 5)]
    copies = [torch.empty_like(parameter, dtype=torch.float16) for parameter in copied]
    optimizer: Any = made(parameters, True, lr=0.1, momentum=0.9)
    with WeightCopies().active():
        weight_copies.cast(copied, torch.float16, lambda: (copies, copies))
        for step, overflows in enumerate((False, True, False)):
            give_gradients(parameters, step)
            optimizer.found_inf, before = torch.tensor(float(overflows)), copies[1].clone()
            optimizer.step()
            for parameter, target in zip(copied, copies, strict=True):
                assert torch.equal(target, parameter.to(torch.float16))
            assert torch.equal(before, copies[1]) == overflows
    others = weights()
    plain = made(others, True, lr=0.1, momentum=0.9)
    for step in (0, 2):
        give_gradients(others, step)
        plain.step()
    assert_near(list(map(Tensor.detach, parameters)), list(map(Tensor.detach, others)))


def test_kernels_are_given_floats_where_settings_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would compile others, which no list has."""
    arguments: list[Any] = []
    monkeypatch.setattr(sgd, "launch", lambda kernel, grid, *others, **constants: arguments.extend(others))
    parameters = weights()[:3]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    made(parameters, True, lr=1, weight_decay=0, momentum=1).step()
    assert [type(value) for value in arguments if not isinstance(value, Tensor | None)] == [float] * 3


def test_an_optimiser_keeps_its_class_hooks_and_closure() -> None:
    parameters = weights()
    optimizer = made(parameters, True, lr=0.1)
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("hook"))

    def closure() -> Tensor:
        calls.append("closure")
        loss = torch.stack([parameter.square().sum() for parameter in parameters]).sum()
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)
    assert type(optimizer) is torch.optim.SGD and calls == ["closure", "hook"] and float(loss.detach()) > 0
    other = torch.optim.Adam(parameters, lr=0.1)
    sgd.use_kernels(other)
    assert "step" not in vars(other)


def test_tables_of_one_row_and_of_many_are_read() -> None:
    for count in (1, 5, 8):
        parameters = [nn.Parameter(torch.full((4, 300), float(i))) for i in range(count)]
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, float(10 * i))
        made(parameters, True, lr=0.1).step()
        assert_near([parameter.detach()[0, 0] for parameter in parameters], [torch.zeros(())] * count)
    assert Tables().of(0, [(torch.zeros(8), None)], 4)[2:4].tolist() == [[8], [0]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("kernels", "is_used"),
    [("auto", True), (["sgd"], True), (["adam", "layer"], False), (["layer", "sgd"], True), ("off", False)],
)
def test_execution_kernels_switches_it(kernels: Any, is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"dim": 12, "n_heads": 2, "n_layers": 1, "hidden_dim": 24, "vocab_size": 30}
    task = DistilBertTask(lambda sizes: DistilBert(sizes), partial(torch.optim.SGD, lr=0.1), sizes=sizes)
    task.accelerate(kernels)
    assert "step" not in vars(task.configure_optimizers())  # on a CPU
    monkeypatch.setattr(task, "fast_optimizer_flags", lambda: {"fused": True})
    assert ("step" in vars(task.configure_optimizers())) == is_used
    assert set(update_kernels.RULES) == {"adam", "sgd", "adagrad"}
