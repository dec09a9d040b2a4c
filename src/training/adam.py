"""Steps of torch's fused Adam and AdamW by Triton kernels: one launch for all large parameters, one for all small ones.

torch's own computes in float64, takes a launch for a few dozen parameters, and with a gradient scale writes the
unscaled gradients back. The kernel moves 28 bytes a parameter, and 2 for a copy in a half precision where the forward
pass reads one (`weight_copies`). Optimisers keep their class, settings and state.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from src.gpu import deferred_rows, triton_helpers, weight_copies
from src.gpu.triton_helpers import launch, package
from src.training import tables
from src.training.tables import Copies, Tables, replace_step

NAME = "adam"  # in execution.kernels
KINDS = torch.optim.Adam, torch.optim.AdamW
LARGE = 2**16  # elements: a program searches its parameter among those of its launch, of which few are large
BLOCK, WARPS = 1024, 4
PLAIN = "amsgrad", "maximize", "differentiable", "foreach"  # settings that the kernels do not have

Row = tuple[Tensor, ...]  # a parameter, its gradient, exp_avg, exp_avg_sq and step


def use_kernels(optimizer: Optimizer) -> None:
    """Has an Adam or AdamW take its steps by kernels where these can; nothing for other optimisers."""
    if type(optimizer) in KINDS and package("src.gpu.adam_triton"):
        replace_step(optimizer, Steps().take)


class Steps:
    """The steps of one optimiser, eager or captured."""

    def __init__(self) -> None:
        self.tables = Tables()

    @torch.no_grad()
    def take(self, optimizer: torch.optim.Adam, closure: Any = None) -> Any:
        """Does what `optimizer.step(closure)` does, to rounding; does not write the unscaled gradients back.

        Args:
            closure: computes the loss again; None: there is none.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        copies = weight_copies.kept()
        scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        for number, group in enumerate(optimizer.param_groups):
            states: list[list[Tensor]] = [[], [], [], [], [], []]
            has_complex = optimizer._init_group(group, *states)
            parts: dict[bool | None, list[int]] = {True: [], False: [], None: []}  # of rows: large, small, torch's
            rows: list[Row] = list(zip(*states[:4], states[5], strict=True))  # without amsgrad's state
            is_torchs_group = not has_kernels(group)
            for i, row in enumerate(rows):
                is_torchs = is_torchs_group or row[0].device.type not in triton_helpers.devices or not can_take(row)
                parts[None if is_torchs else row[0].numel() >= LARGE].append(i)
            for is_large in (True, False):
                part = [rows[i] for i in parts[is_large]]
                table = self.tables.of((number, is_large), part, BLOCK, copies) if part else None
                if table is not None:
                    update(table, part, group, scale, found_inf, copies)
                else:
                    parts[None] += parts[is_large]
            if parts[None]:
                names = *PLAIN, "lr", "weight_decay", "eps", "capturable", "fused", "decoupled_weight_decay"
                beta1, beta2 = group["betas"]
                rest: Any = [[state[i] for i in parts[None]] if state else [] for state in states]
                adam(*rest, beta1=beta1, beta2=beta2, has_complex=has_complex, grad_scale=scale, found_inf=found_inf,
                     **{name: group[name] for name in names})  # fmt: skip
                weights = [rows[i][0] for i in parts[None] if rows[i][0].data_ptr() in copies]
                weight_copies.copy(weights, [copies[weight.data_ptr()] for weight in weights])
        for rows_behind in deferred_rows.given():
            advance(rows_behind.table, rows_behind.factors, None, rows_behind.group, 1)
            rows_behind.take_step()
        return loss


def has_kernels(group: dict[str, Any]) -> bool:
    """Returns whether the kernels have a parameter group's settings."""
    return group["fused"] and not any(group[name] for name in PLAIN)


def can_take(row: Row) -> bool:
    """Returns whether the kernels can update a parameter."""
    parameter, step = row[0], row[4]
    is_number = step.device == parameter.device and step.dtype == torch.float32 and step.numel() == 1
    return is_number and tables.can_take(row[:4])


def update(
    table: Tensor, rows: Sequence[Row], group: dict[str, Any], scale: Tensor | None, found_inf: Tensor | None,
    copies: Copies,
) -> None:  # fmt: skip
    """Launches the kernels. `scale` divides gradients; a `found_inf` that is not 0 skips the step."""
    from src.gpu import adam_triton

    factors = torch.empty(3, table.shape[1], device=table.device)
    like = next((copies[row[0].data_ptr()] for row in rows if row[0].data_ptr() in copies), None)
    advance(table, factors, found_inf, group, len(rows))
    launch(adam_triton.update, (tables.blocks(rows, BLOCK),), table, factors, found_inf, scale,
           like, *settings(group), ROWS=table.shape[1], BLOCK=BLOCK, num_warps=WARPS)  # fmt: skip


def advance(table: Tensor, factors: Tensor, found_inf: Tensor | None, group: dict[str, Any], count: int) -> None:
    """Launches the kernel that counts a step of `count` parameters of a group and writes its factors."""
    from src.gpu import adam_triton

    # Not whole numbers, which Triton would compile other kernels for.
    decay = float(group["weight_decay"]) if group["decoupled_weight_decay"] else 0.0
    lr, rate = (group["lr"], 0.0) if isinstance(group["lr"], Tensor) else (None, float(group["lr"]))
    logs = [math.log(beta) if beta else -math.inf for beta in map(float, group["betas"])]
    launch(adam_triton.advance, (1,), table, factors, found_inf, lr, rate, *logs, decay, count,
           ROWS=table.shape[1], num_warps=WARPS)  # fmt: skip


def settings(group: dict[str, Any]) -> deferred_rows.Settings:
    """Returns both betas, each with 1 - beta, what a weight adds to its gradient, and eps."""
    beta1, beta2 = map(float, group["betas"])
    penalty = 0.0 if group["decoupled_weight_decay"] else float(group["weight_decay"])
    return beta1, 1 - beta1, beta2, 1 - beta2, penalty, float(group["eps"])
