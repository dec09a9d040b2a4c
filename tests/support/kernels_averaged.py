"""What is averaged of a network with fast modules: weights over steps, and gradients over ranks.

`contract` is a KernelsContract, or the class of one.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from src.callbacks.weight_average import WeightAverage
from src.gpu import triton_helpers
from src.training.task import Task
from tests.support.gloo_ranks import Ranks
from tests.support.stand_ins import StandInTrainer


def moving_average(contract: Any, network: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Returns the average of `fit.ema_decay` after two steps, which the network holds then, in float64."""
    task, trainer, average = Task(network, partial(torch.optim.SGD, lr=0.1)), StandInTrainer(), WeightAverage(0.9)
    average.on_train_start(trainer, task)
    for trainer.step in (1, 2):
        network.zero_grad()
        contract.stepped(network, dtype)
        average.on_train_batch_end(trainer, task, None, None, 0)
    values = {name: value.double() for name, value in average.average.items()}
    average.on_validation_start(trainer, task)
    return values


def gradients_of_ranks(contract: Any, folder: Path) -> list[dict[str, dict[str, Tensor]]]:
    """Returns what `averaged_gradients` returns on each of two ranks."""
    ranks = Ranks(2, folder)
    try:
        return ranks(averaged_gradients, contract)
    finally:
        ranks.close()


def averaged_gradients(contract: Any) -> dict[str, dict[str, Tensor]]:
    """Returns, by name, the gradients of the network with its fast modules, averaged over the ranks, in float64."""
    triton_helpers.devices.add("cpu")
    test, gradients = contract(), {}
    for name in test.replacements:
        # Unused are DLRM's tables, which keep their gradients themselves.
        parallel = DistributedDataParallel(Loss(test, test.accelerated([name])), find_unused_parameters=True)
        parallel().backward()
        parameters = parallel.module.network.named_parameters()
        gradients[name] = {key: p.grad.double() for key, p in parameters if p.grad is not None}
    return gradients


class Loss(nn.Module):
    """The contract's loss on rank 0, and twice that on rank 1."""

    def __init__(self, contract: Any, network: nn.Module) -> None:
        super().__init__()
        self.contract, self.network = contract, network

    def forward(self) -> Tensor:
        return (1 + distributed.get_rank()) * self.contract.loss(self.network, torch.float32)
