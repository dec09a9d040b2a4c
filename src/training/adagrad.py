"""Adagrad whose step a CUDA graph can hold."""

# pyright: reportPrivateImportUsage=false

from typing import Any

import torch
from torch import Tensor


class Adagrad(torch.optim.Adagrad):
    """torch's Adagrad with a step that never waits for a GPU, also with loss scaling.

    torch's own (2.11 to 2.13) has no such step: GradScaler asks the host whether to call it, and it reads a learning
    rate on the device. State and results are the same.

    Args:
        capturable: keep the number of steps on the parameters' device.
        others: see torch.optim.Adagrad.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        *,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        self.defaults["capturable"] = capturable
        self._step_supports_amp_scaling = True  # GradScaler sets grad_scale and found_inf and leaves the rest to step()
        for group in self.param_groups:
            group["capturable"] = capturable
            for parameter in group["params"] if capturable else ():
                self.state[parameter]["step"] = self.state[parameter]["step"].to(parameter.device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters, scale, found_inf)

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], scale: Tensor | None, found_inf: Tensor | None
    ) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares, steps = ([self.state[parameter][name] for parameter in parameters] for name in ("sum", "step"))
        if scale is not None:
            gradients = torch._foreach_div(gradients, scale)
        if group["weight_decay"]:
            gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
        if found_inf is not None:  # a gradient of 0 changes nothing, where one of infinity times 0 is NaN
            gradients = [gradient.masked_fill(found_inf != 0, 0) for gradient in gradients]
        for step in steps:
            step += 1 if found_inf is None else (found_inf == 0).to(step)
        rate = group["lr"]
        if group["lr_decay"]:
            rate = rate / (1 + (steps[0] - 1) * group["lr_decay"])
        torch._foreach_addcmul_(squares, gradients, gradients)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, torch._foreach_mul(gradients, -rate), roots)
