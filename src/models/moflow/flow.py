"""A chain of flow steps: what the bond flow and the atom flow share."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.models.moflow.actnorm import ActNorm

RECOMPILE_LIMIT = 64


class FlowStep(nn.Module):
    """One invertible step that begins with an ActNorm. Subclasses add `forward` and `reverse`."""

    actnorm: ActNorm
    reverse: Callable[..., Tensor]


class FlowChain(nn.Module):
    """Steps of one class, applied in order; the condition is the same for all of them."""

    def __init__(self, steps: Sequence[FlowStep]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self._step_type = type(steps[0])
        # Called with the step as their first argument: one compiled function then serves every step.
        self._forward_step: Callable[..., tuple[Tensor, Tensor]] = self._step_type.forward
        self._reverse_step: Callable[..., Tensor] = self._step_type.reverse

    def compile_steps(self, **kwargs: Any) -> None:
        """Run the steps through `torch.compile(fullgraph=True, **kwargs)`, compiled at their first call."""
        # Training, evaluation and sampling, each batch size, exchanged halves or not: more kinds than torch expects.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        self._forward_step = torch.compile(self._step_type.forward, fullgraph=True, **kwargs)
        self._reverse_step = torch.compile(self._step_type.reverse, fullgraph=True, **kwargs)

    def run(
        self, z: Float[Tensor, "batch rows columns"], *condition: Tensor
    ) -> tuple[Float[Tensor, "batch rows columns"], Float[Tensor, " batch"]]:
        """All steps forward: the latent and the summed log-determinants."""
        if torch.is_grad_enabled() and not z.requires_grad and not torch.compiler.is_compiling():
            # The first step's input is data. A graph compiled for it would not fit the steps behind it.
            z = z.detach().requires_grad_()
        log_dets = []
        for step in self.steps:
            z, log_det = self._forward_step(step, z, *condition)
            log_dets.append(log_det)
        return z, torch.stack(log_dets).sum(0)

    def run_reverse(
        self, z: Float[Tensor, "batch rows columns"], *condition: Tensor
    ) -> Float[Tensor, "batch rows columns"]:
        """All steps backwards, the last one first."""
        for step in reversed(self.steps):
            z = self._reverse_step(step, z, *condition)
        return z

    def run_initialize(self, z: Float[Tensor, "batch rows columns"], *condition: Tensor) -> None:
        """Initialise each ActNorm with what the initialised steps before it make of `z`."""
        for step in self.steps:
            cast(FlowStep, step).actnorm.initialize(z)
            z, _ = step(z, *condition)
