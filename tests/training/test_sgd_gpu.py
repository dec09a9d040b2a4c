"""Kernels of SGD and Adagrad on a GPU, eager and replayed with other gradients: steps are torch's."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu.cuda_graphs import Graphed
from src.training import adagrad, sgd
from src.training.adagrad import Adagrad
from src.training.overflow import Overflow
from src.training.task import begin_momentum

pytestmark = pytest.mark.gpu
SHAPES = (1000, 400), (512, 128, 3, 3), (77,), (40, 1), (8,), ()
STEPS = 8
OVERFLOWS = 0, 5  # steps, where gradients are scaled


def sgd_of(parameters: list[nn.Parameter], **settings: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, fused=True, **settings)
    begin_momentum(optimizer)
    return optimizer


KINDS = [
    sgd_of,
    partial(sgd_of, momentum=0.9, weight_decay=0.1),
    partial(sgd_of, momentum=0.9, nesterov=True),
    partial(Adagrad, capturable=True, eps=1e-3),
    partial(Adagrad, capturable=True, eps=1e-3, lr_decay=0.1, weight_decay=0.1),
]


def stepped(kind: Any, ours: bool, scaled: bool, tensor_rate: bool) -> list[Tensor]:
    """Returns weights and state after steps in a graph, of which two are skipped if `scaled`."""
    generator = torch.Generator("cuda").manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, device="cuda", generator=generator)) for shape in SHAPES]
    parameters[1].data = parameters[1].data.to(memory_format=torch.channels_last)
    optimizer: Any = kind(parameters, lr=torch.tensor(0.01, device="cuda") if tensor_rate else 0.01)
    module = (sgd, adagrad)[isinstance(optimizer, Adagrad)]
    if ours:
        module.use_kernels(optimizer)
    launched, search, update = list[int](), Overflow(), module.update

    def counted(table: Tensor, rows: Any, *others: Any) -> None:
        launched.append(len(rows))
        update(table, rows, *others)

    def step(factor: Tensor, scale: Tensor, overflow: Tensor) -> Tensor:
        gradients = list[Tensor]()
        for number, parameter in enumerate(parameters):
            gradients.append((parameter.detach() * (number + 1)).sin() * factor * scale + overflow)
            parameter.grad = gradients[-1]
        if scaled:
            optimizer.grad_scale, optimizer.found_inf = scale, search(gradients)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        return parameters[0].sum()

    run = Graphed(step, graph=True, warmup=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "update", counted)
        for number in range(STEPS):
            if tensor_rate:
                optimizer.param_groups[0]["lr"] *= 0.9
            overflow = torch.inf if scaled and number in OVERFLOWS else 0.0
            values = number - 2.5, 1024.0 if scaled else 1.0, overflow
            run(*(torch.tensor(value, device="cuda") for value in values))
    # Two eager steps and a capture, of the parameters whose elements are a multiple of 4.
    assert launched == ([4] * 3 if ours else [])
    state = [value for parameter in parameters for value in optimizer.state[parameter].values()]
    return [*(parameter.detach() for parameter in parameters), *(value for value in state if value is not None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_replayed_steps_are_torchs(kind: Any, scaled: bool, tensor_rate: bool) -> None:
    results = [stepped(kind, ours, scaled, tensor_rate) for ours in (True, False)]
    # A gradient is a sine of up to six times the weight, times 5 at most: it enlarges the weights' rounding.
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert all(bool(value.isfinite().all()) for value in results[0])
