"""Finding, reading and checking checkpoints."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from src.errors import UserError


def newest_checkpoint(output_root: Path, model: str, before: Path) -> Path | None:
    """The newest `last.ckpt` of this model under the output folder, other than in the run folder `before`."""
    found = [
        p for p in (output_root / model).glob("**/checkpoints/last.ckpt") if before.resolve() not in p.resolve().parents
    ]
    return max(found, key=lambda p: p.stat().st_mtime, default=None)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The checkpoint, on the CPU. Raises UserError if it is missing, cut short or no checkpoint of ours."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such checkpoint; give the path of a last.ckpt or best.ckpt") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        raise UserError(
            f"{path}: not a readable checkpoint ({str(error).splitlines()[0][:80]}); give another"
        ) from None
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise UserError(f"{path}: holds no state_dict; give a checkpoint that train.py wrote")
    return checkpoint


def compare(checkpoint: dict[str, Any], path: Path, network: nn.Module) -> None:
    """Raises UserError naming the first parameter whose name or shape differs from the network's."""
    theirs = {
        k.removeprefix("network."): v.shape for k, v in checkpoint["state_dict"].items() if k.startswith("network.")
    }
    ours = {k: v.shape for k, v in network.state_dict().items()}
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            raise UserError(
                f"{path}: a checkpoint of another architecture: {key} is {shown(theirs.get(key))} there and "
                f"{shown(ours.get(key))} here; use the model config it was trained with"
            )


def load_weights(task: nn.Module, checkpoint: dict[str, Any], path: Path) -> None:
    """Puts the checkpoint's weights into the task; raises UserError where the networks differ."""
    compare(checkpoint, path, task.network)  # type: ignore[arg-type]
    task.load_state_dict(checkpoint["state_dict"])


def shown(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))
