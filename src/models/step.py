"""One optimiser step of any task: loss, backward, unscale, clip, update. Eager, or replayed from one CUDA graph."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

if TYPE_CHECKING:
    from src.models.task import Task


class TrainStep:
    """Call it with a batch; it returns the step's scalars as detached device tensors, without waiting for the device.

    With `graph`, the first `warmup_steps` run eagerly on the stream that the capture uses (compilation and autotuning
    happen there), then the whole step, optimiser and loss scaling included, is captured once and replayed. A batch of
    another shape than the captured one runs eagerly. The mathematics is the same either way.
    """

    def __init__(self, task: "Task", graph: bool, warmup_steps: int) -> None:
        self.task = task
        self.optimizer = task.optimizers()
        self.scaler = getattr(task.trainer.precision_plugin, "scaler", None)
        self.parameters = [p for p in task.parameters() if p.requires_grad]
        self.warmup_steps = warmup_steps
        self.calls = 0
        self.stream = torch.cuda.Stream(task.device) if graph else None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: dict[str, Tensor] = {}

    def __call__(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        if self.calls == 0:
            self.task.prepare_first_step(batch)
        self.calls += 1
        outputs = self._on_stream(batch) if self.stream else self._eager(batch)
        self._count_optimizer_step()
        return outputs

    def _on_stream(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        assert self.stream is not None
        if self.graph is None and self.calls > self.warmup_steps:
            self._capture(batch)
        if self.graph is not None and all(a.shape == b.shape for a, b in zip(batch, self.inputs, strict=True)):
            for static, new in zip(self.inputs, batch, strict=True):
                static.copy_(new, non_blocking=True)
            self.graph.replay()
            return self.outputs
        main = torch.cuda.current_stream()
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            outputs = self._eager(batch)
        main.wait_stream(self.stream)
        return outputs

    def _capture(self, batch: tuple[Tensor, ...]) -> None:
        """Records one step without running it; gradients live in the graph's own memory from here on."""
        self.inputs = tuple(tensor.clone() for tensor in batch)
        self._zero_grad()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.outputs = self._body(self.inputs)

    def _eager(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        self._zero_grad()
        return self._body(batch)

    def _zero_grad(self) -> None:
        # A replay writes into the graph's gradients, so an eager step between replays must give those back.
        if self.graph is None:
            for parameter in self.parameters:
                parameter.grad = None
        else:
            torch._foreach_zero_(  # pyright: ignore[reportPrivateImportUsage]
                [p.grad for p in self.parameters if p.grad is not None]
            )

    def _body(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        outputs = self.task.loss(batch)
        with torch.autocast(self.task.device.type, enabled=False):  # Lightning has it on around training_step
            self.task.manual_backward(outputs["loss"])
            optimizer: Any = self.optimizer.optimizer  # type: ignore[union-attr]
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
            if self.task.clip_norm is not None:
                outputs["grad_norm"] = clip_grad_norm_(self.parameters, self.task.clip_norm)
            if self.scaler is not None:
                self.scaler.step(optimizer)
                self.scaler.update()
                outputs["loss_scale"] = self.scaler._get_scale_async()  # the host must not read it here
            else:
                optimizer.step()
        return {name: value.detach() for name, value in outputs.items() if value is not None}

    def _count_optimizer_step(self) -> None:
        # Lightning's global_step counts what its own wrapper runs; a replay does not pass there.
        self.optimizer._on_before_step()  # type: ignore[union-attr]
        self.optimizer._on_after_step()  # type: ignore[union-attr]
