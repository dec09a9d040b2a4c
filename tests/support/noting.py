"""A callback for runs: each rank notes what it alone sees of every step."""

import json
from pathlib import Path
from typing import Any

import pytorch_lightning as pl


class Noting(pl.Callback):
    """Writes this rank's loss and samples of each step to `folder`/rankN.jsonl."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: object) -> None:
        note = {"loss": float(pl_module.last["loss"]), "samples": pl_module.step_samples}
        with (self.folder / f"rank{trainer.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(note) + "\n")


def noted(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Returns the notes of a rank."""
    return [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]
