"""A whole run of a tiny model, with the loss of every step."""

from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from src.config.complete import complete
from src.measure.clock import Clock
from src.run import build, fit, quieten


class Trained(NamedTuple):
    """The loss of each step; the network's weights and buffers before the first and after the last, on the CPU."""

    losses: list[float]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


def trained(config: DictConfig) -> Trained:
    quieten()
    job = build(complete(config), Clock())
    before = state_of(job.task.network)
    losses: list[float] = []
    follow = job.task.training_step

    def noting(batch: Any, batch_idx: int) -> None:
        follow(batch, batch_idx)
        losses.append(float(job.task.last["loss"]))

    job.task.training_step = noting  # type: ignore[method-assign]
    fit(job)
    return Trained(losses, before, state_of(job.task.network))


def state_of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.to("cpu", copy=True) for name, value in network.state_dict().items()}
