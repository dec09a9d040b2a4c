"""One optimiser step of any task: loss, backward, unscale, clip, update. Eager, or replayed from a CUDA graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState
from torch.nn.utils import clip_grad_norm_

from src.models.averaging import GradientAverage, travelling_dtype
from src.models.graphed import Graphed

if TYPE_CHECKING:
    from src.models.task import Task


LARGE = 50 * 2**20  # bytes of gradients whose unscaling takes longer than the small kernels that spare it


class TrainStep:
    """Call it with a batch, or with several, whose mean gradient is taken.

    It returns the step's scalars (means over the batches) as detached device tensors, without waiting for the device.

    With `graph`, a shape of batch runs eagerly for `warmup_steps` steps; then the whole step, optimiser, loss scaling
    and the exchange with other ranks included, is captured once and replayed. The mathematics is the same either way.
    """

    def __init__(self, task: "Task", graph: bool, warmup_steps: int) -> None:
        self.task = task
        self.optimizer = task.optimizers()
        self.scaler = getattr(task.trainer.precision_plugin, "scaler", None)
        self.parameters = [p for p in task.trained_parameters() if p.requires_grad]
        self.is_large = sum(parameter.nbytes for parameter in self.parameters) > LARGE
        self.average = None
        if task.trainer.world_size > 1:
            dtype = travelling_dtype(task.execution.gradient_dtype)
            self.average = GradientAverage(self.parameters, task.waiting, dtype)
        # The first step settles how gradients travel, which no graph can hold.
        self.run = Graphed(self._step, graph, max(1, warmup_steps))
        self.started = False

    def __call__(self, *batches: Any) -> dict[str, Tensor]:
        if not self.started:
            self.task.prepare_first_step(batches[0])
            self.started = True
        outputs = self.run(*batches)
        self._count_optimizer_step()
        return outputs

    def close(self) -> None:
        """Gives the graphs back, which the group of ranks cannot end before."""
        self.run.captures.clear()
        if self.average is not None:
            self.average.close()

    def _step(self, *batches: Any) -> dict[str, Tensor]:
        *found, outputs = [self._backward(batch, number + 1, len(batches)) for number, batch in enumerate(batches)]
        if found:
            outputs = {name: torch.stack([each[name] for each in (*found, outputs)]).mean(0) for name in outputs}
        with torch.autocast(self.task.device.type, enabled=False):
            outputs |= self._update()
        # No gradient outlives its step: each graph makes its own, in memory that the next graph or step uses again.
        for parameter in self.parameters:
            parameter.grad = None
        return {name: value.detach() for name, value in outputs.items() if value is not None}

    def _backward(self, batch: Any, number: int, batches: int) -> dict[str, Tensor]:
        """Adds the gradients of one of so many batches to those that are there; returns its scalars."""
        if self.average is not None:
            self.average.is_last = number == batches
        outputs = self.task.loss(batch)
        with torch.autocast(self.task.device.type, enabled=False):  # Lightning has it on around training_step
            self.task.manual_backward(outputs["loss"] if batches == 1 else outputs["loss"] / batches)
        return {name: value.detach() for name, value in outputs.items() if value is not None}

    def _update(self) -> dict[str, Tensor]:
        """Changes the weights; returns the gradients' norm where it is limited, and the loss's scale if it has one."""
        optimizer: Any = self.optimizer.optimizer  # type: ignore[union-attr]
        clip_norm, average = self.task.clip_norm, self.average
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        early = [] if average is None else average.early()
        if average is not None and early and fused and clip_norm is None and average.dtype is None:
            return self._update_in_two(optimizer, average, early)
        # Fused updates divide gradients on their way, which spares unscaling and clipping a pass each.
        divides = fused and (clip_norm is not None or (self.scaler is not None and self.is_large))
        norms = norms_of(gradients_of(early)) if divides else []  # while the last gradients still travel
        late = self.parameters if average is None else average.late()
        norm, scale, found_inf = None, None, None
        if divides:
            norm = self._set_divisor(optimizer, norms + norms_of(gradients_of(late)))
        elif self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self.scaler is not None:
            scale, found_inf = self.scaler._get_scale_async(), self._found_inf(optimizer)
        if clip_norm is not None and not divides:
            norm = clip_grad_norm_(self.parameters, clip_norm)
        self.task.update_rest(optimizer.param_groups[0]["lr"], scale, found_inf)
        if self.scaler is not None:
            self.scaler.step(optimizer)
        else:
            optimizer.step()
        return self._end_of_update(None if clip_norm is None else norm)

    def _update_in_two(self, optimizer: Any, average: GradientAverage, early: list[nn.Parameter]) -> dict[str, Tensor]:
        """Updates parameters whose gradients have come early while the others' still travel, then those."""
        scale, found_inf = None, None
        if self.scaler is not None:
            # A mean is finite where what each rank sends is: an overflow shows before the last means are there.
            self._note_overflow(optimizer, norm_of(norms_of(gradients_of(early) + average.unmet())))
            scale, found_inf = self.scaler._get_scale_async(), average.agree(self._found_inf(optimizer))
            self._per_optimizer(optimizer).update(found_inf_per_device={found_inf.device: found_inf})
            optimizer.grad_scale, optimizer.found_inf = scale, found_inf
        self.task.update_rest(optimizer.param_groups[0]["lr"], scale, found_inf)
        for parameter in set(self.parameters) - set(early):
            parameter.grad = None  # so that it is left alone
        optimizer.step()
        for parameter in early:
            parameter.grad = None
        average.late()
        optimizer.step()
        if self.scaler is not None:
            del optimizer.grad_scale, optimizer.found_inf
        return self._end_of_update()

    def _end_of_update(self, norm: Tensor | None = None) -> dict[str, Tensor]:
        found = {} if norm is None else {"grad_norm": norm}
        if self.scaler is not None:
            self.scaler.update()
            found["loss_scale"] = self.scaler._get_scale_async()  # the host must not read it here
        return found

    def _set_divisor(self, optimizer: Any, norms: list[Tensor]) -> Tensor:
        """Tells a fused optimiser what to divide gradients by; returns their norm, not finite where one overflowed.

        The loss's scale times what `clip_grad_norm_` would divide by.
        """
        clip_norm, norm = self.task.clip_norm, norm_of(norms)
        scale = torch.ones_like(norm)
        if self.scaler is not None:
            self._note_overflow(optimizer, norm)
            scale = self.scaler._get_scale_async()
            norm = norm / scale
        optimizer.grad_scale = scale
        if clip_norm is not None:
            optimizer.grad_scale = scale / (clip_norm / (norm + 1e-6)).clamp(max=1)
        return norm

    def _note_overflow(self, optimizer: Any, norm: Tensor) -> None:
        """Tells GradScaler what its own pass over all gradients would have found: their norm is finite, or not."""
        found_inf = (~norm.isfinite()).float()
        self._per_optimizer(optimizer).update(
            stage=OptState.UNSCALED, found_inf_per_device={found_inf.device: found_inf}
        )

    def _per_optimizer(self, optimizer: Any) -> dict[str, Any]:
        assert self.scaler is not None
        return self.scaler._per_optimizer_states[id(optimizer)]

    def _found_inf(self, optimizer: Any) -> Tensor:
        """Not 0 where a gradient overflowed, also one that the optimiser does not hold: then no weight changes."""
        assert self.scaler is not None
        found = next(iter(self.scaler._found_inf_per_device(optimizer).values()))
        rest = self.task.overflowed()
        return found if rest is None else found.copy_(torch.maximum(found, rest))

    def _count_optimizer_step(self) -> None:
        # Lightning's global_step counts what its own wrapper runs; a replay does not pass there.
        self.optimizer._on_before_step()  # type: ignore[union-attr]
        self.optimizer._on_after_step()  # type: ignore[union-attr]


def norms_of(gradients: list[Tensor]) -> list[Tensor]:
    """Of each of them."""
    return list(torch._foreach_norm(gradients)) if gradients else []  # pyright: ignore[reportPrivateImportUsage]


def gradients_of(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm_of(norms: Sequence[Tensor]) -> Tensor:
    """Of everything whose parts have these norms."""
    return torch.linalg.vector_norm(torch.stack(list(norms))).float()
