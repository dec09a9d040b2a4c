"""One rank of tiny DistilBERT runs, as a script: `distilbert_ranks.py HOME CASE ... [option=value ...]`.

Each rank leaves its losses and weights, and how often it updated in two. Messages are so short that there are many, and
the word vectors' gradient travels in pieces.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from tiny_distilbert import tiny_distilbert
from trained import trained

from src.models import step
from src.models.averaging import GradientAverage
from src.models.step import TrainStep

GLOBAL_BATCH, ENOUGH = 8, 2**12  # sentences, bytes
NETWORK = "model.task.network"
COMMON = (
    "hardware=auto", "fit.max_epochs=6", "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false", f"{NETWORK}.dropout=0", f"{NETWORK}.attention_dropout=0", f"{NETWORK}.head_dropout=0",
    "model.task.sizes.dim=64", "model.task.sizes.hidden_dim=96", "hp.lr=0.03",
    "+model.task.optimizer.eps=0.01",  # without which Adam makes much of rounding
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "single": ("precision=fp32",),
    "half": ("precision=amp", "precision.loss_scale=1024"),
    "clipped": ("precision=amp", "precision.loss_scale=1024", "fit.clip_norm=0.05"),
    "accumulated": ("precision=fp32", "hp.accumulate=2"),
    "overflow": (
        "precision=amp",
        "precision.loss_scale=1024",
        "+callbacks.overflow._target_=distilbert_ranks.Overflow",
    ),
}  # fmt: skip
IN_TWO = "+model.task.optimizer.fused=true"  # as on a GPU: the optimiser divides gradients itself
CASES |= {f"{name}_in_two": (*CASES[name], IN_TWO) for name in ("single", "overflow")}


class Overflow(pl.Callback):
    """The gradient that comes last is not finite in every fourth step, on one rank alone."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        def spoilt(gradient: torch.Tensor) -> torch.Tensor:
            spoils = trainer.global_rank == 1 and trainer.global_step % 4 == 1
            return gradient.fill_(torch.inf) if spoils else gradient

        pl_module.network.distilbert.embeddings.word_embeddings.weight.register_hook(spoilt)


def main(home: Path, *arguments: str) -> None:
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    step.GradientAverage = partial(GradientAverage, enough=ENOUGH)  # type: ignore[assignment, misc]
    in_two, updates = TrainStep._update_in_two, []

    def noting(*given: Any) -> Any:
        updates.append(1)
        return in_two(*given)

    TrainStep._update_in_two = noting  # type: ignore[method-assign]
    options = [each for each in arguments if "=" in each]
    for name in (each for each in arguments if each not in options):
        updates.clear()
        folder = home / name / str(world)
        batch = f"hp.batch_size={GLOBAL_BATCH // world}"
        case = (*COMMON, *CASES[name], batch, f"trainer=1x{world}", f"output_dir={folder}", *options)
        found = trained(tiny_distilbert(home, *case, padding="max_length"))._asdict()
        torch.save({**found, "in_two": len(updates)}, home / f"{name}_{world}_{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
