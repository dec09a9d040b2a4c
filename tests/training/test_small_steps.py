"""The step of one weight: the mean over samples, scaled and clipped; test_step.py has those of whole runs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from src.batches.step import StepBatches
from src.config.schema import Execution
from src.gpu import triton_helpers, weight_copies
from src.gpu.waiting import Waiting
from src.training import adam, sgd
from src.training.step import TrainStep

CPU = torch.device("cpu")


def nothing() -> None:
    pass


class MeanTask:
    """Its loss is the weight times the mean of a batch, so that this mean is the gradient."""

    def __init__(self, clip_norm: float | None = None, fused: bool = False, scaler: Any = None) -> None:
        self.execution, self.clip_norm, self.waiting = Execution(), clip_norm, Waiting(CPU)
        self.device, self.losses = CPU, torch.zeros(())
        self.weight = nn.Parameter(torch.zeros(()))
        inner = torch.optim.SGD([self.weight], lr=1.0, fused=fused)
        self.optimizer = SimpleNamespace(optimizer=inner, _on_before_step=nothing, _on_after_step=nothing)
        self.scaler = scaler
        self.trainer: Any = SimpleNamespace(precision_plugin=SimpleNamespace(scaler=scaler), world_size=1)

    def optimizers(self) -> Any:
        return self.optimizer

    def trained_parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    def prepare_first_step(self, batches: Sequence[Any]) -> None:
        pass

    def loss(self, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": self.weight * batch.mean()}

    def manual_backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def overflowed(self) -> Tensor | None:
        return None

    def update_rest(self, lr: Tensor | float, loss_scale: Tensor | None, found_inf: Tensor | None) -> None:
        pass

    def steps(self, *batches: Tensor) -> float:
        """Returns the gradient that the optimiser took one step along."""
        step = StepBatches.of(list(batches), [[len(batch)] for batch in batches], rank=0)
        TrainStep(self, graph=False, warmup_steps=1)(step)
        assert self.weight.grad is None
        return -self.weight.item()


def test_a_step_takes_the_mean_over_the_samples_of_its_batches() -> None:
    three, one = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([7.0])
    assert MeanTask().steps(three) == 3
    assert MeanTask().steps(three, three + 4) == 5
    assert MeanTask().steps(three, three, one) == pytest.approx(25 / 7)


@pytest.mark.parametrize("scale", [None, 1024.0])
@pytest.mark.parametrize("fused", [False, True])
def test_only_a_gradient_above_the_norm_is_clipped(fused: bool, scale: float | None) -> None:
    for gradient in (0.25, 4.0):
        scaler = None if scale is None else torch.amp.GradScaler("cpu", scale)
        step = MeanTask(clip_norm=0.5, fused=fused, scaler=scaler).steps(torch.tensor([gradient]))
        assert step == pytest.approx(min(gradient, 0.5), rel=1e-4)


class ScaledTask(MeanTask):
    """Its weights are some that kernels take and one that they do not; other parameters may overflow too."""

    def __init__(self, with_kernels: bool) -> None:
        super().__init__(scaler=torch.amp.GradScaler("cpu", 2.0**12))
        self.weights = [nn.Parameter(torch.ones(size)) for size in (8, 3)]
        self.optimizer.optimizer = torch.optim.SGD(self.weights, lr=0.5, fused=True)
        if with_kernels:
            sgd.use_kernels(self.optimizer.optimizer)
        self.rest = torch.zeros(())

    def trained_parameters(self) -> list[nn.Parameter]:
        return self.weights

    def loss(self, batch: Tensor) -> dict[str, Tensor]:
        sums = [weight.square().sum() for weight in self.weights]
        return {"loss": batch[0] * sums[0] + batch[1] * sums[1]}

    def overflowed(self) -> Tensor | None:
        return self.rest


def test_kernels_divide_gradients_that_are_left_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """GradScaler goes through no gradients; steps that overflow in any parameter are skipped, and lower the scale."""
    batches = [[0.1, 0.2], [torch.inf, 0.1], [0.1, torch.inf], [0.1, torch.nan], [0.2, 0.1], [0.3, 0.1]]
    results = []
    for with_kernels in (False, True):
        monkeypatch.setattr(triton_helpers, "devices", {"cpu"} if with_kernels else set())
        task = ScaledTask(with_kernels)
        run, weights = TrainStep(task, graph=False, warmup_steps=1), list[Tensor]()
        if with_kernels:
            monkeypatch.setattr(torch.amp.GradScaler, "unscale_", None)
        for number, batch in enumerate(batches):
            task.rest = torch.tensor(float(number == 4))
            scalars = run(StepBatches.of([torch.tensor(batch)], [[2]], rank=0))
            weights += [*(weight.detach().clone() for weight in task.weights), scalars["loss_scale"].clone()]
        results.append(weights)
    torch.testing.assert_close(*results, rtol=1e-6, atol=0)
    assert float(results[0][-1]) == 2.0**8


class CastTask(MeanTask):
    """Its loss reads the weight in half precision, as fast layers do."""

    def __init__(self, with_kernels: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.optimizer.optimizer = torch.optim.AdamW([self.weight], lr=0.1, fused=True)
        if with_kernels:
            adam.use_kernels(self.optimizer.optimizer)
        self.casts, self.seen = 0, torch.zeros(())

    def loss(self, batch: Tensor) -> dict[str, Tensor]:
        def make() -> tuple[Tensor, list[Tensor]]:
            self.casts += 1
            target = torch.empty(4, dtype=torch.float16)
            return target, [target]

        self.seen = weight_copies.cast([self.weight], torch.float16, make).clone()
        return {"loss": (self.weight * batch.mean()).sum()}


@pytest.mark.parametrize("with_kernels", [False, True])
def test_a_step_reads_weights_as_they_are(with_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that the optimiser keeps are those of casts, also of weights that something else changed in between."""
    monkeypatch.setattr(triton_helpers, "devices", {"cpu"})
    task, batches = CastTask(with_kernels), [torch.ones(2), torch.ones(2)]
    run = TrainStep(task, graph=False, warmup_steps=1)
    changes = [nothing, nothing, lambda: task.weight.mul_(3), lambda: task.weight.copy_(torch.arange(4.0)), nothing]
    for change in changes:
        with torch.no_grad():
            change()
        expected = task.weight.detach().to(torch.float16)
        run(StepBatches.of(batches, [[len(batch)] for batch in batches], rank=0))
        assert torch.equal(task.seen, expected) and not torch.equal(task.weight.detach().to(torch.float16), expected)
    assert task.casts == (1 if with_kernels else len(batches) * len(changes))
