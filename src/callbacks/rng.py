"""Keeps the random generators of a run: over a resume by its checkpoint, and over evaluations, which draw from them."""

import random
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import distributed

from src.training.task import Task


class RngState(pl.Callback):
    """Saves and restores the generators of Python, numpy, torch and this rank's GPU.

    It comes before callbacks that save checkpoints, which must not hold what an evaluation left.
    """

    def __init__(self) -> None:
        self._to_restore: list[dict[str, Any]] | None = None
        self._before_evaluation: dict[str, Any] | None = None

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        self._before_evaluation = rng_state(pl_module.device)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Restores them: whether and when a run evaluates does not change what it trains."""
        if self._before_evaluation is not None:
            restore(self._before_evaluation, pl_module.device)

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        state = rng_state(pl_module.device)
        states: list[Any] = [state]
        if trainer.world_size > 1:
            states = [None] * trainer.world_size
            distributed.all_gather_object(states, state)
        checkpoint["rng_of_ranks"] = states

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: Task, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("rng_of_ranks")
        if states and len(states) == trainer.world_size:  # with another world size they are not restored
            check(states[trainer.global_rank])
            self._to_restore = states

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Task) -> None:
        """Restores them for the final evaluation of a run whose training was done: it is not begun again."""
        self.on_train_start(trainer, pl_module)

    def on_train_start(self, trainer: pl.Trainer, pl_module: Task) -> None:
        states, self._to_restore = self._to_restore, None
        if states:
            restore(states[trainer.global_rank], pl_module.device)


def rng_state(device: torch.device) -> dict[str, Any]:
    name, keys, *position = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def check(state: dict[str, Any]) -> None:
    """Raises what generators raise for states that are not theirs, before those of the run are changed."""
    random.Random().setstate(state["python"])
    np.random.RandomState().set_state(numpy_state(state))
    torch.Generator().set_state(state["torch"])
    if state["cuda"] is not None and (state["cuda"].dtype != torch.uint8 or state["cuda"].ndim != 1):
        raise ValueError("the GPU's random generator has a state of another kind")


def numpy_state(state: dict[str, Any]) -> tuple[Any, ...]:
    name, keys, *position = state["numpy"]
    return name, keys.numpy().astype(np.uint32), *position


def restore(state: dict[str, Any], device: torch.device) -> None:
    random.setstate(state["python"])
    np.random.set_state(numpy_state(state))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
