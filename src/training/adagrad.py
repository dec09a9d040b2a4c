"""Adagrad whose step a CUDA graph can hold."""

# pyright: reportPrivateImportUsage=false

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from src.gpu import triton_helpers, weight_copies
from src.gpu.triton_helpers import launch, package
from src.training.sgd import BLOCK, WARPS, arguments
from src.training.tables import Copies, Row, Tables, blocks, can_take, with_kernels

NAME = "adagrad"  # in execution.kernels


def use_kernels(optimizer: Optimizer) -> None:
    """Has an Adagrad of this module take its steps by kernels where these can; nothing for other optimisers."""
    if isinstance(optimizer, Adagrad) and package("src.gpu.sgd_triton"):
        optimizer.tables = Tables()
        with_kernels.add(optimizer)


class Adagrad(torch.optim.Adagrad):
    """torch's Adagrad with a step that never waits for a GPU, also with loss scaling.

    torch's own (2.11 to 2.13) has no such step: GradScaler asks the host whether to call it, and it reads a learning
    rate on the device. State and results are the same.

    Args:
        capturable: keep the number of steps on the parameters' device.
        others: see torch.optim.Adagrad.
    """

    tables: Tables | None = None  # with them kernels take the steps, on a GPU

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
        copies = weight_copies.kept()
        for number, group in enumerate(self.param_groups):
            rows: list[Row] = [
                (parameter, parameter.grad, self.state[parameter]["sum"], self.state[parameter]["step"])
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            taken = [row for row in rows if self._can_take(row, group["lr"])]
            table = self.tables.of(number, taken, BLOCK, copies) if self.tables is not None and taken else None
            if table is not None:
                update(table, taken, group, scale, found_inf, copies)
            rest = rows if table is None else [row for row in rows if not self._can_take(row, group["lr"])]
            if rest:
                self._update(group, rest, scale, found_inf)
                weight_copies.renew([row[0] for row in rest if row[0] is not None])

    def _can_take(self, row: Row, lr: float | Tensor) -> bool:
        """Returns whether the kernels can update a parameter."""
        *tensors, step = row
        parameter = tensors[0]
        return (
            self.tables is not None
            and parameter is not None
            and step is not None
            and parameter.device.type in triton_helpers.devices
            and parameter.device == step.device
            and step.dtype == torch.float32
            and (not isinstance(lr, Tensor) or lr.device == parameter.device)
            and can_take(tensors)
        )

    def _update(self, group: dict[str, Any], rows: list[Row], scale: Tensor | None, found_inf: Tensor | None) -> None:
        parameters, gradients, squares, steps = (list(column) for column in zip(*rows, strict=True))
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


def update(
    table: Tensor, rows: list[Row], group: dict[str, Any], scale: Tensor | None, found_inf: Tensor | None,
    copies: Copies,
) -> None:  # fmt: skip
    """Launches the kernels. `scale` divides gradients; a `found_inf` that is not 0 skips the step."""
    from src.gpu import sgd_triton

    lr, rate, like = arguments(rows, group, copies)
    settings = (float(group[name]) for name in ("lr_decay", "weight_decay", "eps"))
    launch(sgd_triton.update_adagrad, (blocks(rows, BLOCK),), table, found_inf, scale, like, lr, rate, *settings,
           ROWS=table.shape[1], BLOCK=BLOCK, num_warps=WARPS)  # fmt: skip
    launch(sgd_triton.count_steps, (1,), table, found_inf, len(rows), ROWS=table.shape[1], num_warps=WARPS)
