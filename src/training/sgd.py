"""Steps of torch's fused SGD by one Triton kernel for all parameters of a group.

torch's takes a launch for a few dozen parameters, with a program for 65,536 elements: few, where a network is small.
The kernel moves 20 bytes a parameter, 12 without momentum, and 2 for a copy in a half precision where the forward pass
reads one (`weight_copies`). Optimisers keep their class, settings and state.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.optim.sgd import sgd

from src.gpu import triton_helpers, weight_copies
from src.gpu.triton_helpers import launch, package
from src.training.tables import Copies, Row, Tables, blocks, can_take, replace_step

NAME = "sgd"  # in execution.kernels
BLOCK, WARPS = 1024, 4
PLAIN = "dampening", "maximize", "differentiable", "foreach"  # settings that the kernel does not have


def use_kernels(optimizer: Optimizer) -> None:
    """Has an SGD take its steps by a kernel where that can; nothing for other optimisers."""
    if type(optimizer) is torch.optim.SGD and package("src.gpu.sgd_triton"):
        tables = Tables()

        def step(optimizer: torch.optim.SGD, closure: Any = None) -> Any:
            return take_step(optimizer, tables, closure)

        replace_step(optimizer, step)


@torch.no_grad()
def take_step(optimizer: torch.optim.SGD, tables: Tables, closure: Any = None) -> Any:
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
        parameters, gradients, buffers = list[Tensor](), list[Tensor](), list[Tensor | None]()
        is_sparse = optimizer._init_group(group, parameters, gradients, buffers)
        rows: list[Row] = list(zip(parameters, gradients, buffers or [None] * len(parameters), strict=True))
        is_plain = not group["fused"] or any(group[name] for name in PLAIN) or isinstance(group["weight_decay"], Tensor)
        taken = [] if is_plain else [row for row in rows if can_update(row, group)]
        table = tables.of(number, taken, BLOCK, copies) if taken else None
        if table is not None:
            update(table, taken, group, scale, found_inf, copies)
        rest = rows if table is None else [row for row in rows if not can_update(row, group)]
        if rest:
            parameters, gradients, buffers = map(list, zip(*rest, strict=True))
            buffers = buffers if group["momentum"] else []
            names = "weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused"
            sgd(parameters, gradients, buffers, has_sparse_grad=is_sparse, grad_scale=scale, found_inf=found_inf,
                **{name: group[name] for name in names})  # fmt: skip
            for parameter, buffer in zip(parameters, buffers, strict=bool(buffers)):
                optimizer.state[parameter]["momentum_buffer"] = buffer
            weight_copies.renew(parameters)
    return loss


def can_update(row: Row, group: dict[str, Any]) -> bool:
    """Returns whether the kernel can update a parameter."""
    parameter, lr = row[0], group["lr"]
    assert parameter is not None
    is_here = parameter.device.type in triton_helpers.devices
    has_rate = not isinstance(lr, Tensor) or lr.device == parameter.device
    return is_here and has_rate and can_take(row if group["momentum"] else row[:2])


def update(
    table: Tensor, rows: list[Row], group: dict[str, Any], scale: Tensor | None, found_inf: Tensor | None,
    copies: Copies,
) -> None:  # fmt: skip
    """Launches the kernel. `scale` divides gradients; a `found_inf` that is not 0 skips the step."""
    from src.gpu import sgd_triton

    lr, rate, like = arguments(rows, group, copies)
    # Not whole numbers, which Triton would compile other kernels for.
    momentum = float(group["momentum"]) if group["momentum"] else None
    launch(sgd_triton.update_sgd, (blocks(rows, BLOCK),), table, found_inf, scale, like, lr, rate, momentum,
           float(group["weight_decay"]), NESTEROV=bool(group["nesterov"]), ROWS=table.shape[1], BLOCK=BLOCK,
           num_warps=WARPS)  # fmt: skip


def arguments(rows: list[Row], group: dict[str, Any], copies: Copies) -> tuple[Tensor | None, float, Tensor | None]:
    """Returns the learning rate on the device or as a number, and a copy, whose dtype all have."""
    parameters = [row[0] for row in rows if row[0] is not None]
    like = next((copies[p.data_ptr()] for p in parameters if p.data_ptr() in copies), None)
    lr, rate = (group["lr"], 0.0) if isinstance(group["lr"], Tensor) else (None, float(group["lr"]))
    return lr, rate, like
