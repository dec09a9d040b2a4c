"""Steps of torch's fused Adam and AdamW by Triton kernels: one launch for all large parameters, one for all small ones.

torch's own computes in float64, takes a launch for a few dozen parameters, and with a gradient scale writes the
unscaled gradients back. The kernel moves 28 bytes a parameter, and 2 for a copy in a half precision where the forward
pass reads one (`weight_copies`). Optimisers keep their class, settings and state.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer

from src.gpu import deferred_rows, triton_helpers, weight_copies
from src.gpu.triton_helpers import launch, package, power_of_2
from src.training.tables import with_kernels

NAME = "adam"  # in execution.kernels
KINDS = torch.optim.Adam, torch.optim.AdamW
LARGE = 2**16  # elements: a program searches its parameter among those of its launch, of which few are large
BLOCK, WARPS = 1024, 4
NEVER = 2**62  # a block that there is not
PLAIN = "amsgrad", "maximize", "differentiable", "foreach"  # settings that the kernels do not have

Row = tuple[Tensor, ...]  # a parameter, its gradient, exp_avg, exp_avg_sq and step
Copies = Mapping[int, Tensor]  # of parameters in the products' dtype, by the parameter's address


def use_kernels(optimizer: Optimizer) -> None:
    """Has an Adam or AdamW take its steps by kernels where these can; nothing for other optimisers."""
    if type(optimizer) in KINDS and package("src.gpu.adam_triton"):
        steps = Steps()

        def step(optimizer: torch.optim.Adam, closure: Any = None) -> Any:
            return steps.take(optimizer, closure)

        # torch's wrapper calls hooks of steps and names them for the profiler.
        optimizer.step = partial(Optimizer.profile_hook_step(step), optimizer)  # type: ignore[method-assign]
        with_kernels.add(optimizer)


class Steps:
    """The steps of one optimiser, eager or captured, with the host memory that captured ones read."""

    def __init__(self) -> None:
        self.spares: dict[Any, Tensor] = {}  # by launch: a capture must not allocate pinned memory
        self.captured: list[Tensor] = []

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
                host = self.table((number, is_large), part, copies) if part else None
                if host is not None:
                    update(host, part, group, scale, found_inf, copies)
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

    def table(self, key: Any, rows: Sequence[Row], copies: Copies) -> Tensor | None:
        """Returns the kernels' table of these parameters on the host; None where a capture has no memory for it."""
        columns, end = [], 0
        for row in rows:
            target = copies.get(row[0].data_ptr())
            columns.append(
                [*map(Tensor.data_ptr, row), row[0].numel(), end, 0 if target is None else target.data_ptr()]
            )
            end += blocks(row[0])
        columns += [[0] * 6 + [NEVER, 0]] * (power_of_2(len(rows)) - len(rows))
        values = torch.tensor(columns).T
        if not rows[0][0].is_cuda:
            return values.contiguous()
        spare = self.spares.get(key)
        has_spare = spare is not None and spare.shape == values.shape
        if torch.cuda.is_current_stream_capturing():
            if not has_spare:
                return None
            self.captured.append(self.spares.pop(key))  # each replay reads it
            return self.captured[-1].copy_(values)
        if not has_spare:
            self.spares[key] = torch.empty(values.shape, dtype=torch.int64, pin_memory=True)
        # Not one memory for all steps: the copy of an earlier step may not have begun.
        return torch.empty(values.shape, dtype=torch.int64, pin_memory=True).copy_(values)


def has_kernels(group: dict[str, Any]) -> bool:
    """Returns whether the kernels have a parameter group's settings."""
    return group["fused"] and not any(group[name] for name in PLAIN)


def can_take(row: Row) -> bool:
    """Returns whether the kernels can update a parameter."""
    parameter, gradient, average, square, step = row
    return (
        parameter.device == gradient.device == average.device == square.device == step.device
        and parameter.dtype == gradient.dtype == average.dtype == square.dtype == step.dtype == torch.float32
        and parameter.stride() == gradient.stride() == average.stride() == square.stride()
        and parameter.numel() % 4 == 0  # loads are of 16 bytes
        and not (parameter.data_ptr() | gradient.data_ptr() | average.data_ptr() | square.data_ptr()) % 16
        and is_dense(parameter)
        and step.numel() == 1
    )


def is_dense(tensor: Tensor) -> bool:
    """Returns whether a tensor's elements fill one piece of memory, in any order."""
    if tensor.is_contiguous():
        return True
    size = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != size:
            return False
        size *= length
    return True


def update(
    host: Tensor, rows: Sequence[Row], group: dict[str, Any], scale: Tensor | None, found_inf: Tensor | None,
    copies: Copies,
) -> None:  # fmt: skip
    """Launches the kernels. `scale` divides gradients; a `found_inf` that is not 0 skips the step."""
    from src.gpu import adam_triton

    table = host.to(rows[0][0].device, non_blocking=True)
    factors = torch.empty(3, table.shape[1], device=table.device)
    like = next((copies[row[0].data_ptr()] for row in rows if row[0].data_ptr() in copies), None)
    advance(table, factors, found_inf, group, len(rows))
    launch(adam_triton.update, (sum(blocks(row[0]) for row in rows),), table, factors, found_inf, scale,
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


def blocks(parameter: Tensor) -> int:
    """Returns how many blocks of BLOCK elements a parameter has."""
    return -(-parameter.numel() // BLOCK)
