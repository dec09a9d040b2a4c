"""Kernels of Adam and AdamW on a GPU, eager and replayed with other gradients: steps are torch's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.gpu.cuda_graphs import MOST, Graphed
from src.training import adam

pytestmark = pytest.mark.gpu
SHAPES = (1000, 400), (512, 128, 3, 3), (77,), (40, 1), (8,), ()
STEPS = 8


def stepped(kind: type[torch.optim.Adam], ours: bool, scaled: bool, tensor_rate: bool) -> list[Tensor]:
    """Returns weights and state after steps in a graph, of which two are skipped if `scaled`."""
    generator = torch.Generator("cuda").manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, device="cuda", generator=generator)) for shape in SHAPES]
    parameters[1].data = parameters[1].data.to(memory_format=torch.channels_last)
    rate = torch.tensor(0.01, device="cuda") if tensor_rate else 0.01
    optimizer: Any = kind(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=0.1, fused=True, capturable=True)
    if ours:
        adam.use_kernels(optimizer)
    launched: list[int] = []
    update = adam.update

    def counted(table: Tensor, rows: Any, *others: Any) -> None:
        launched.append(len(rows))
        update(table, rows, *others)

    def step(factor: Tensor, scale: Tensor, found_inf: Tensor) -> Tensor:
        for number, parameter in enumerate(parameters):
            parameter.grad = (parameter.detach() * (number + 1)).sin() * factor * scale
        if scaled:
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        return parameters[0].sum()

    run = Graphed(step, graph=True, warmup=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adam, "update", counted)
        for number in range(STEPS):
            if tensor_rate:
                optimizer.param_groups[0]["lr"] *= 0.9
            values = [number - 2.5, 1024.0 if scaled else 1.0, float(scaled and number in (0, 5))]
            run(*(torch.tensor(value, device="cuda") for value in values))
    # Two eager steps and a capture, of two large and two small parameters: 77 elements and a scalar are torch's.
    assert launched == ([2, 2] * 3 if ours else [])
    states = [optimizer.state[parameter] for parameter in parameters]
    return [*(p.detach() for p in parameters), *(s[key] for s in states for key in ("step", "exp_avg", "exp_avg_sq"))]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_replayed_steps_are_torchs(kind: type[torch.optim.Adam], scaled: bool, tensor_rate: bool) -> None:
    results = [stepped(kind, ours, scaled, tensor_rate) for ours in (True, False)]
    # A gradient is a sine of twice the weight, times 5 at most: it enlarges the weights' rounding.
    torch.testing.assert_close(*results, rtol=4e-6, atol=4e-6)
    assert float(results[0][len(SHAPES)]) == STEPS - 2 * scaled


def test_graphs_captured_one_after_another_all_hold_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = nn.Parameter(torch.ones(400, device="cuda"))
    optimizer: Any = torch.optim.AdamW([parameter], lr=0.01, fused=True, capturable=True)
    adam.use_kernels(optimizer)
    launches, update = list[int](), adam.update

    def counted(*arguments: Any) -> None:
        launches.append(torch.cuda.is_current_stream_capturing())
        update(*arguments)

    def step(gradient: Tensor) -> Tensor:
        parameter.grad = gradient.sum() * parameter.detach()
        optimizer.step()
        return parameter.detach().sum()

    monkeypatch.setattr(adam, "update", counted)
    run = Graphed(step, graph=True, warmup=1)
    for _ in range(2):
        for length in range(1, MOST + 1):
            run(torch.ones(length, device="cuda"))
    assert launches == [False] * MOST + [True] * MOST


def test_steps_in_a_graph_that_others_capture_are_torchs() -> None:
    results = list[Tensor]()
    for ours in (True, False):
        parameter = nn.Parameter(torch.linspace(-1, 1, 400, device="cuda"))
        parameter.grad = parameter.detach().clone()
        optimizer: Any = torch.optim.AdamW([parameter], lr=0.01, fused=True, capturable=True)
        if ours:
            adam.use_kernels(optimizer)
        optimizer.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        graph.replay()
        results.append(parameter.detach())
    torch.testing.assert_close(*results)
