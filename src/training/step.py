"""One optimiser step of any task: loss, backward, unscale, clip, update. Eager, or replayed from a CUDA graph."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState
from torch.nn.utils import clip_grad_norm_, get_total_norm

from src.batches.step import StepBatches
from src.config.schema import Execution
from src.gpu import precompile
from src.gpu.cuda_graphs import Graphed
from src.gpu.deferred_rows import DeferredRows
from src.gpu.waiting import Waiting
from src.gpu.weight_copies import WeightCopies
from src.parallel.gradient_averaging import GradientAverage, bucket_dtype
from src.training import adam, overflow
from src.training.overflow import Overflow
from src.training.tables import with_kernels

# Versions of torch whose GradScaler has the private fields that are used below; with others only its public methods are
# called, and gradients are unscaled, clipped and checked in passes of their own.
TRIED = torch.__version__.startswith(("2.11.", "2.13."))


@runtime_checkable
class StepTask(Protocol):
    """What a step asks of its task; `src.training.task.Task` says what each of these is."""

    execution: Execution
    clip_norm: float | None
    waiting: Waiting
    losses: Tensor

    @property
    def device(self) -> torch.device: ...
    @property
    def trainer(self) -> pl.Trainer: ...
    def optimizers(self) -> Any: ...
    def trained_parameters(self) -> list[nn.Parameter]: ...
    def prepare_first_step(self, batches: Sequence[Any]) -> None: ...
    def loss(self, batch: Any) -> dict[str, Tensor]: ...
    def manual_backward(self, loss: Tensor) -> None: ...
    def overflowed(self) -> Tensor | None: ...
    def update_rest(self, lr: Tensor | float, loss_scale: Tensor | None, found_inf: Tensor | None) -> None: ...


class TrainStep:
    """Call it with the batches of a step; the gradient is that of the mean loss over all samples of all ranks.

    It returns the step's scalars as detached device tensors, without waiting for the device: means over the samples of
    this rank.

    With `graph`, a shape of batch runs eagerly for `warmup_steps` steps; then the whole step, optimiser, loss scaling
    and the exchange with other ranks included, is captured once and replayed. The mathematics is the same either way.

    With `defers`, steps of embedding rows may be deferred: see `Task.defers_rows`.
    """

    def __init__(self, task: StepTask, graph: bool, warmup_steps: int, defers: bool = False) -> None:
        self.task = task
        self.optimizer = task.optimizers()
        self.scaler = getattr(task.trainer.precision_plugin, "scaler", None)
        self.one = torch.ones((), device=task.device)
        self.parameters = [p for p in task.trained_parameters() if p.requires_grad]
        self.average = None
        if task.trainer.world_size > 1:
            dtype = bucket_dtype(task.execution.gradient_dtype)
            self.average = GradientAverage(self.parameters, task.waiting, dtype)
        self.run = Graphed(self._step, graph, warmup_steps)
        # Other optimisers would not write the copies when a graph replays them.
        self.copies = WeightCopies() if self.optimizer.optimizer in with_kernels else None  # type: ignore[union-attr]
        self.deferred = DeferredRows(self.optimizer.optimizer, adam.settings) if defers else None  # type: ignore[union-attr]
        self.overflow = Overflow()
        self.started = False

    def __call__(self, step: StepBatches) -> dict[str, Tensor]:
        if not self.started:
            precompile.wait()
            self.task.prepare_first_step(step.batches)
            self.started = True
        if self.copies is not None:
            self.copies.refresh()
        deferred = self.deferred.step() if self.deferred is not None else nullcontext()
        with self.copies.active() if self.copies is not None else nullcontext(), deferred:
            outputs = self.run(step.weights, *step.batches)
        self._count_optimizer_step()
        return outputs

    def close(self) -> None:
        """Gives the graphs back, which the group of ranks cannot end before."""
        self.run.captures.clear()
        if self.deferred is not None:
            self.deferred.close()
        if self.average is not None:
            self.average.close()

    def _step(self, weights: Tensor | None, *batches: Any) -> dict[str, Tensor]:
        of_batches = []
        for number, batch in enumerate(batches):
            if self.average is not None:
                self.average.is_last = number + 1 == len(batches)
            of_batches.append(self._backward(batch, None if weights is None else weights[number], len(batches)))
        outputs = mean_over_samples(of_batches, weights)
        with torch.autocast(self.task.device.type, enabled=False):
            optimizer: Any = self.optimizer.optimizer  # type: ignore[union-attr]
            clip_norm, scale, found_inf = self.task.clip_norm, None, None
            # Fused updates divide gradients on their way, which spares unscaling and clipping a pass each.
            divides = clip_norm is not None and TRIED and getattr(optimizer, "_step_supports_amp_scaling", False)
            norms: list[Tensor] = []
            for gradients in self._gradients():  # the first ones while the last are still averaged
                if divides:
                    norms += torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
            if divides:
                outputs["grad_norm"] = self._set_divisor(optimizer, norms)
            elif self.scaler is not None and self._can_leave_scaled(optimizer):
                found_inf = self._leave_scaled(optimizer)
            elif self.scaler is not None:
                found_inf = None if TRIED else self._spread_overflow()
                self.scaler.unscale_(optimizer)
            if self.scaler is not None:
                scale = self._scale()
                found_inf = self._found_inf(optimizer) if found_inf is None else found_inf
            if clip_norm is not None and not divides:
                outputs["grad_norm"] = clip_grad_norm_(self.parameters, clip_norm)
            self.task.update_rest(optimizer.param_groups[0]["lr"], scale, found_inf)
            if self.scaler is not None:
                self.scaler.step(optimizer)
                self.scaler.update()
                outputs["loss_scale"] = self.scaler.scale(self.one)
            else:
                optimizer.step()
        self.task.losses.add_(outputs["loss"].detach(), alpha=0)  # 0 times a number that is not finite is NaN
        # No gradient outlives its step: each graph makes its own, in memory that the next graph or step uses again.
        for parameter in self.parameters:
            parameter.grad = None
        return {name: value.detach() for name, value in outputs.items() if value is not None}

    def _backward(self, batch: Any, weight: Tensor | None, batches: int) -> dict[str, Tensor]:
        """Adds the gradients of one of so many batches to those that are there; returns its scalars."""
        outputs = self.task.loss(batch)
        with torch.autocast(self.task.device.type, enabled=False):  # Lightning has it on around training_step
            loss = outputs["loss"]
            if weight is not None:
                loss = loss * weight
            elif batches > 1:
                loss = loss / batches
            self.task.manual_backward(loss)
        return {name: value.detach() for name, value in outputs.items() if value is not None}

    def _gradients(self) -> Iterator[list[Tensor]]:
        """Yields all gradients in one or several parts; with several ranks their means, read-only until the last."""
        parts = [self.parameters] if self.average is None else self.average.averaged()
        for part in parts:
            if gradients := [parameter.grad for parameter in part if parameter.grad is not None]:
                yield gradients

    def _set_divisor(self, optimizer: Any, norms: list[Tensor]) -> Tensor:
        """Tells a fused optimiser what to divide gradients by; returns their norm, not finite where one overflowed.

        The loss's scale times what `clip_grad_norm_` would divide by. GradScaler is told what its own pass over all
        gradients would have found: their norm is finite, or not.
        """
        clip_norm = self.task.clip_norm
        assert clip_norm is not None
        norm = torch.linalg.vector_norm(torch.stack(norms)).float()
        scale = torch.ones_like(norm)
        if self.scaler is not None:
            scale = self._scale()
            self._set_found_inf(optimizer, (~norm.isfinite()).float())
            norm = norm / scale
        optimizer.grad_scale = scale / (clip_norm / (norm + 1e-6)).clamp(max=1)
        return norm

    def _can_leave_scaled(self, optimizer: Any) -> bool:
        """Returns whether the optimiser's kernels divide gradients that the search for overflows takes."""
        return TRIED and optimizer in with_kernels and overflow.supported(self._all_gradients())

    def _leave_scaled(self, optimizer: Any) -> Tensor:
        """Tells an optimiser what to divide gradients by, and GradScaler whether one overflowed; returns that."""
        optimizer.grad_scale = self._scale()
        found_inf = self.overflow(self._all_gradients(), self.task.overflowed())
        self._set_found_inf(optimizer, found_inf)
        return found_inf

    def _scale(self) -> Tensor:
        """Returns what this step's loss was multiplied by, until GradScaler's update; the host must not read it."""
        assert self.scaler is not None
        return self.scaler._scale if TRIED else self.scaler.scale(self.one)

    def _set_found_inf(self, optimizer: Any, found_inf: Tensor) -> None:
        """Tells GradScaler what its own pass over all gradients would have found."""
        assert self.scaler is not None
        state = self.scaler._per_optimizer_states[id(optimizer)]
        state.update(stage=OptState.UNSCALED, found_inf_per_device={found_inf.device: found_inf})

    def _all_gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _found_inf(self, optimizer: Any) -> Tensor:
        """Returns a scalar that is not 0 if a gradient overflowed, also one outside the optimiser."""
        assert self.scaler is not None
        found_inf = next(iter(self.scaler._found_inf_per_device(optimizer).values()))
        rest = self.task.overflowed()
        return found_inf if rest is None else found_inf.copy_(torch.maximum(found_inf, rest))

    def _spread_overflow(self) -> Tensor:
        """Returns what `_found_inf` does; makes a gradient infinite, for the scaler, where the task overflowed."""
        gradients, rest = self._all_gradients(), self.task.overflowed()
        if rest is not None:
            gradients[0].masked_fill_(rest != 0, torch.inf)
        return (~get_total_norm(gradients).isfinite()).float()

    def _count_optimizer_step(self) -> None:
        # Lightning's global_step counts what its own wrapper runs; a replay does not pass there.
        self.optimizer._on_before_step()  # type: ignore[union-attr]
        self.optimizer._on_after_step()  # type: ignore[union-attr]


def mean_over_samples(of_batches: Sequence[dict[str, Tensor]], weights: Tensor | None) -> dict[str, Tensor]:
    """Returns the scalars of several batches as means over their samples; zeros where a rank has none."""
    if len(of_batches) == 1:
        return of_batches[0]
    together = {name: torch.stack([scalars[name] for scalars in of_batches]) for name in of_batches[0]}
    if weights is None:
        return {name: values.mean(0) for name, values in together.items()}
    shares = weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
    return {name: (values * shares.to(values.dtype)).sum(0) for name, values in together.items()}
