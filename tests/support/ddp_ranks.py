"""A tiny run whose result does not depend on how a global batch is dealt to ranks. As a script: one rank of it.

Two things of the published training do depend on that. The dequantisation noise is drawn per rank: here every
molecule gets the same noise. BatchNorm normalises with the local batch: here it uses its initial running statistics.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from src.models.moflow.actnorm import ActNorm, BatchNorm
from src.models.moflow.network import MoFlow
from src.models.moflow.task import MoFlowTask
from src.run import train
from tests.support import patched_start  # noqa: F401
from tests.support.tiny_run import tiny_config

GLOBAL_BATCH = 16


def run(home: Path, ranks: int) -> dict[str, Any]:
    """Returns what this rank saw and ended with: `actnorm` as initialised, `losses`, `trained`, `held_out`, `state`."""
    seen: dict[str, Any] = {"actnorm": {}, "losses": [], "trained": [], "held_out": [], "state": {}}
    forward, loss = BatchNorm.forward, MoFlowTask.loss
    prepare, validate = MoFlowTask.prepare_first_step, MoFlowTask.validation_step

    def same_noise(self: MoFlow, x: Tensor, adj: Tensor, noise: bool) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shares = (torch.rand(values.shape[1:], generator=generator) for values in (x, adj))
        return tuple(v + noise * self.noise_scale * share for v, share in zip((x, adj), shares, strict=True))  # type: ignore[return-value]

    def without_batch(self: BatchNorm, *arguments: Any) -> Tensor:
        self.training = False
        return forward(self, *arguments)

    def initialised(self: MoFlowTask, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        prepare(self, batches)
        layers = {name: layer for name, layer in self.network.named_modules() if isinstance(layer, ActNorm)}
        seen["actnorm"] = {name: torch.stack([a.loc, a.scale]).detach().clone() for name, a in layers.items()}

    def noted_loss(self: MoFlowTask, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        seen["trained"].append(batch[0].clone())
        parts = loss(self, batch)
        seen["losses"].append(parts["loss"].item())
        seen["state"] = self.network.state_dict()  # the tensors themselves, which go on changing
        return parts

    def noted_validation(self: MoFlowTask, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        seen["held_out"].append(batch[0].clone())
        validate(self, batch, batch_idx)

    config = tiny_config(
        home, f"trainer=1x{ranks}", f"hp.batch_size={GLOBAL_BATCH // ranks}", "fit.max_epochs=2", "hp.lr=0.01",
        f"model.task.network.norm_batch={GLOBAL_BATCH // 2}",
        "model.task.optimizer._target_=torch.optim.SGD", "~model.task.optimizer.betas", "fit.final_evaluation=false",
    )  # fmt: skip
    with (
        mock.patch.object(MoFlow, "dequantise", same_noise),
        mock.patch.object(BatchNorm, "forward", without_batch),
        mock.patch.object(MoFlowTask, "prepare_first_step", initialised),
        mock.patch.object(MoFlowTask, "loss", noted_loss),
        mock.patch.object(MoFlowTask, "validation_step", noted_validation),
    ):
        train(config)
    return seen


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.save(run(folder, int(os.environ["WORLD_SIZE"])), folder / f"rank{os.environ['RANK']}.pt")
