"""One rank of DLRM runs on GPUs, as a script: `dlrm_ranks.py HOME [first] [all_to_all] [CASE ...]`.

`first` trains the first epoch and saves checkpoints; `all_to_all` turns the exchange through peer memory off.
Without `first` the runs resume from those checkpoints, on the same global batches. Each rank saves its losses.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from src.models.dlrm.fast.peer_memory import PeerMemoryExchange
from src.run import train
from tests.support.tiny_dlrm import ON_DISK, tiny_dlrm

ROWS = [50, 3, 1200, 7, 900, 40000, 300, 80]
COMMON = (
    "hardware=auto", f"datamodule.generate.cardinalities={ROWS}".replace(" ", ""), "model.task.tables=null",
    "model.task.network.embedding_dim=32", "model.task.network.bottom=[16,32]", "fit.final_evaluation=false",
    "execution.graph_warmup_steps=2", "hp.lr=0.3",  # a higher rate amplifies rounding differences
     "+callbacks.losses._target_=dlrm_ranks.Losses",
)  # fmt: skip
REPLICATED = "+model.task.sharding={cat_0.bin:data_parallel,cat_6.bin:data_parallel}"
CUT = "+model.task.sharding={cat_2.bin:row_wise,cat_5.bin:column_wise,cat_0.bin:data_parallel}"
CASES: dict[str, tuple[str, ...]] = {
    "dot": (),
    "half": ("precision=amp", "precision.loss_scale=1024"),
    "torchrec": ("model.task.engine=torchrec", CUT),
    "cat": ("model.task.network.interaction=cat",),
    "adagrad": (
        "model=dlrm_dcnv2", "hp.lr=0.02", "model.task.network.cross_rank=16",
        "datamodule.generate.hotness=[1,3,2,1,1,2,1,1]",
    ),
}  # fmt: skip
EPOCHS = 7  # of 8 steps; all runs share the first one


class Losses(pl.Callback):
    """Records the loss of every step."""

    latest: "Losses"

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        Losses.latest = self

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.values.append(pl_module.last["loss"].detach().clone())


def main(home: Path, first: bool, cases: list[str]) -> None:
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    for name in cases:
        overrides = CASES[name]
        folder = home / name / ("first" if first else str(world))
        model = "dlrm_dcnv2" if name == "adagrad" else "dlrm"
        case = [*COMMON, *(text for text in overrides if not text.startswith("model=")), f"trainer=1x{world}",
                f"data_root={home / name}", f"output_dir={folder}"]  # fmt: skip
        if first:
            case += ["fit.max_epochs=1"]
        else:
            checkpoint = home / name / "first" / "checkpoints" / "last.ckpt"
            if name != "torchrec":
                case += [REPLICATED]
            case += [f"fit.max_epochs={EPOCHS}", f"ckpt_path={checkpoint}"]
        record = train(tiny_dlrm(home, *case, data=ON_DISK, model=model))
        result = {"losses": torch.stack(Losses.latest.values).double().cpu()}
        torch.save(result | {"metrics": record.history[-1], "phases": record.phases_s}, folder / f"rank{rank}.pt")


if __name__ == "__main__":
    sys.modules["dlrm_ranks"] = sys.modules["__main__"]
    if "all_to_all" in sys.argv:
        PeerMemoryExchange.reason_unsupported = staticmethod(lambda tables: "turned off")  # type: ignore[method-assign]
    main(Path(sys.argv[1]), "first" in sys.argv, [name for name in CASES if name in sys.argv])
