"""A chain of invertible steps, the base of the bond flow and the atom flow."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.models.moflow.actnorm import ActNorm, initialize_alike
from src.system.later_dynamo import is_eager

RECOMPILE_LIMIT = 64


class FlowStep(nn.Module):
    """One invertible step that begins with an ActNorm. Subclasses add `forward` and `reverse`."""

    actnorm: ActNorm
    reverse: Callable[..., Tensor]


class FlowChain(nn.Module):
    """Steps of one class, applied in order, with the same condition for all of them."""

    def __init__(self, steps: Sequence[FlowStep]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self._step_type = type(steps[0])
        # Unbound functions that take the step as first argument: one compiled function then serves every step.
        self._forward_step: Callable[..., tuple[Tensor, Tensor]] = self._step_type.forward
        self._reverse_step: Callable[..., Tensor] = self._step_type.reverse

    def compile_steps(self, **kwargs: Any) -> None:
        """Compiles the steps with `torch.compile(fullgraph=True, **kwargs)` at their first call."""
        self._forward_step = compiled_later(self._step_type.forward, kwargs)
        self._reverse_step = compiled_later(self._step_type.reverse, kwargs)

    def run(
        self, z: Float[Tensor, "batch rows columns"], *condition: Tensor
    ) -> tuple[Float[Tensor, "batch rows columns"], Float[Tensor, " batch"]]:
        """Applies all steps; returns the latent and the summed log-determinants."""
        z = differentiable(z)
        log_dets = []
        for step in self.steps:
            z, log_det = self._forward_step(step, z, *condition)
            log_dets.append(log_det)
        return z, torch.stack(log_dets).sum(0)

    def run_reverse(
        self, z: Float[Tensor, "batch rows columns"], *condition: Tensor, limit: "Limit | None" = None
    ) -> Float[Tensor, "batch rows columns"]:
        """Inverts all steps, the last one first. With `limit`, values behind each step are cut off."""
        z = differentiable(z)
        for step in reversed(self.steps):
            z = self._reverse_step(step, z, *condition)
            z = z if limit is None else limit(z)
        return z


def compiled_later(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function, compiled when it is called: a training by kernels of ours never imports the compiler."""
    compiled = None

    def call(*arguments: Any) -> Any:
        nonlocal compiled
        if is_eager():
            return function(*arguments)
        if compiled is None:
            # Training, evaluation, sampling, each batch size and each swap of halves need a graph.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
            compiled = torch.compile(function, fullgraph=True, **options)
        return compiled(*arguments)

    return call


def initialize_together(chains: Sequence[FlowChain], starts: Sequence[tuple[Tensor, ...]]) -> None:
    """Initialises each ActNorm of several networks' chains alike, with the outputs of the initialised steps before it.

    `starts` has each network's own values before the first step, and behind them the condition of its steps.
    """
    values = [z for z, *_ in starts]
    for steps in zip(*(chain.steps for chain in chains), strict=True):
        initialize_alike([cast(FlowStep, step).actnorm for step in steps], values)
        values = [step(z, *rest)[0] for step, z, (_, *rest) in zip(steps, values, starts, strict=True)]


class Limit:
    """Cuts off the values behind a step where a flow diverges on a latent, before they or their gradients overflow.

    Attributes:
        beyond: how far they went beyond FREE, as the sum of log(1 + distance) of a sample's values behind all steps,
            mean of the samples. It has a gradient where what is cut off has none, up to infinity.
    """

    # In the quick start's network real molecules have 0 to 8 of 1,024 values beyond 5 behind a step, none beyond 16.
    FREE, BOUND = 5.0, 50.0

    def __init__(self) -> None:
        self.beyond: Tensor | float = 0.0

    def __call__(self, z: Float[Tensor, "batch rows columns"]) -> Float[Tensor, "batch rows columns"]:
        far = F.relu(z.abs() - self.FREE).nan_to_num(0, 1e4, 0)
        self.beyond = self.beyond + torch.log1p(far).sum((1, 2)).mean()
        return z.nan_to_num(0, self.BOUND, -self.BOUND).clamp(-self.BOUND, self.BOUND)


def differentiable(z: Tensor) -> Tensor:
    """Returns the first step's input as one with a gradient: a compiled graph without would not serve later steps."""
    if torch.is_grad_enabled() and not z.requires_grad and not torch.compiler.is_compiling():
        return z.detach().requires_grad_()
    return z
