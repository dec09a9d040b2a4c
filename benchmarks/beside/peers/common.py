"""What all peers share: batches of our datamodules, precision, training steps and CUDA graphs."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from benchmarks.beside.assignment import Assignment
from src.config import schema
from src.config.instantiate import instantiate
from src.config.settings import CONF
from src.config.versions import BASE

POOL = 8  # different batches on the device
_last_loss: list[Tensor] = []
AUTOCAST = {"amp": torch.float16, "fp16": torch.float16, "bf16": torch.bfloat16}


def batches(
    assignment: Assignment, device: torch.device, count: int = POOL, keep: Callable[[Any], bool] = lambda _: True
) -> tuple[Any, list[Any]]:
    """Returns our datamodule, and `count` of its training batches, those to `keep`, which lie on the device."""
    from src.config.complete import complete

    schema.register()
    with initialize_config_dir(str(CONF), **BASE):
        config = complete(compose("train", [*assignment.data, "logger=none", "output_dir=none"]))
    datamodule = instantiate(config.datamodule, "datamodule")
    datamodule.device = device
    datamodule.prepare_data()
    datamodule.setup("fit")
    pool = []
    while len(pool) < count:
        before = len(pool)
        for batch in datamodule.loader("train", train=True, batch_size=assignment.batch_size):
            pool += [batch] if keep(batch) else []
            if len(pool) == count:
                break
        if len(pool) == before:
            raise RuntimeError("the training split has no batch")
    return datamodule, pool


def set_precision(precision: str) -> None:
    """Allows TF32 in products unless the case is fp32, and lets cuDNN choose by trying."""
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True


def autocast(precision: str, device: torch.device) -> Any:
    """Returns the context of the precision."""
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype=dtype) if dtype else nullcontext()


def training_step(
    loss: Callable[[Any], Tensor],
    optimizer: torch.optim.Optimizer,
    precision: str,
    device: torch.device,
    scale: float | None = None,
) -> Callable[[Any], None]:
    """Returns a function that trains one batch with autocast and loss scaling; `scale` keeps the scale constant."""
    enabled = precision == "amp"
    scaler = torch.amp.GradScaler(device.type, enabled=enabled)
    if scale is not None:
        scaler = torch.amp.GradScaler(device.type, scale, growth_interval=10**9, enabled=enabled)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss(batch)
        remember_loss(value)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def remember_loss(loss: Tensor) -> None:
    _last_loss[:] = [loss.detach()]


def final_loss() -> dict[str, Any]:
    """Returns the loss of the last step; "not finite" is said, since arithmetic with NaN needs less power."""
    loss = _last_loss[0].item() if _last_loss else None
    return {"final_loss": "not finite" if loss is not None and not math.isfinite(loss) else loss}


def fused(device: torch.device, **more: bool) -> dict[str, Any]:
    """Returns the options of an optimizer that computes in one kernel, and `more`, on a GPU."""
    return {"fused": True, **more} if device.type == "cuda" else {}


def over(step: Callable[[Any], Any], pool: list[Any]) -> Callable[[], Any]:
    """Returns the step with the next batch of the pool at each call."""
    endless: Iterator[Any] = cycle(pool)
    return lambda: step(next(endless))


def in_graph(step: Callable[[], Any], device: torch.device, warm_up: int = 11) -> Callable[[], Any]:
    """Returns the replay of a CUDA graph of the step; the step itself on a CPU.

    The graph reads the same memory at each replay: the batch of the capture, without a copy, in the peer's favour.
    """
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


class Once:
    """A step that is prepared at its first call, which is in the warm-up turn: then no other process works."""

    def __init__(self, prepare: Callable[[], Callable[[], Any]]) -> None:
        self.prepare: Callable[[], Callable[[], Any]] | None = prepare
        self.step: Callable[[], Any] = lambda: None

    def __call__(self) -> Any:
        if self.prepare is not None:
            self.step, self.prepare = self.prepare(), None
        return self.step()
