"""One rank of tiny DistilBERT runs, as a script: `distilbert_ranks.py HOME`. Each rank saves its losses and weights.

Buckets are so small that there are many and the word vectors' gradient is split.
"""

import os
import sys
from functools import partial
from pathlib import Path

import torch

from src.parallel.gradient_averaging import GradientAverage
from src.training import step
from tests.support.tiny_distilbert import tiny_distilbert
from tests.support.trained import trained

GLOBAL_BATCH, BUCKET_BYTES = 8, 2**12
NETWORK = "model.task.network"
COMMON = (
    "hardware=auto", "fit.max_epochs=6", "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false", f"{NETWORK}.dropout=0", f"{NETWORK}.attention_dropout=0", f"{NETWORK}.head_dropout=0",
    "model.task.sizes.dim=64", "model.task.sizes.hidden_dim=96", "hp.lr=0.03",
    "+model.task.optimizer.eps=0.01",  # a smaller one makes Adam amplify rounding
)  # fmt: skip
CASES = {
    "single": ("precision=fp32",),
    "half": ("precision=amp", "precision.loss_scale=1024"),
    "clipped": ("precision=amp", "precision.loss_scale=1024", "fit.clip_norm=0.05"),
    "accumulated": ("precision=fp32", "hp.accumulate=2"),
}


def main(home: Path) -> None:
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    step.GradientAverage = partial(GradientAverage, max_bytes=BUCKET_BYTES)  # type: ignore[assignment, misc]
    for name, overrides in CASES.items():
        folder = home / name / str(world)
        batch = f"hp.batch_size={GLOBAL_BATCH // world}"
        case = (*COMMON, *overrides, batch, f"trainer=1x{world}", f"output_dir={folder}")
        torch.save(
            trained(tiny_distilbert(home, *case, padding="max_length"))._asdict(), home / f"{name}_{world}_{rank}.pt"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
