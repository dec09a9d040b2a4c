"""Whether the training of a checkpoint is done: it is then not begun again, and its run stays as it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Timer

from src.callbacks.legs import LEGS
from src.callbacks.plateau import Plateau
from src.callbacks.target import Target
from src.errors import UserError
from src.launch.restoring import restoring
from src.report.record import Record, read_record
from src.training.task import Task


def record_if_done(checkpoint: Mapping[str, Any], path: Path) -> Record | None:
    """Returns the record of the checkpoint's run where that ended well, with this checkpoint; else None."""
    try:
        record = read_record(path.parent.parent)
    except UserError:
        return None
    legs = checkpoint.get(LEGS)
    is_same = isinstance(legs, dict) and legs.get("run") == record.run
    is_last = bool(record.legs) and record.legs[-1].last_step == checkpoint.get("global_step")
    return record if record.status == "done" and is_same and is_last else None


def limits_reached(checkpoint: Mapping[str, Any], path: Path, trainer: pl.Trainer, task: Task) -> list[str]:
    """Returns for each limit of this run that the checkpoint has reached the override that goes on; none: it trains.

    Raises UserError where the checkpoint is beyond `fit.max_epochs` or `fit.max_steps`, or holds no such state.
    """
    if "loops" not in checkpoint:  # weights alone, which are refused later
        return []
    with restoring(path, here=True):
        epochs = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
        steps, states = checkpoint["global_step"], checkpoint.get("callbacks", {})
    reached = []
    for key, done, limit in (
        ("fit.max_epochs", epochs, trainer.max_epochs),
        ("fit.max_steps", steps, trainer.max_steps),
    ):
        if limit is None or limit < 0 or done < limit:
            continue
        if done > limit:
            raise UserError(f"{path} has trained for {done}, beyond {key}={limit}; give {key}={done} or more")
        reached.append(f"{key} above {limit}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        state = states.get(callback.state_key)
        if not isinstance(callback, Plateau | Target | Timer) or not state:
            continue
        with restoring(path, here=True):
            callback.load_state_dict(state)  # as Lightning will again
        if isinstance(callback, Timer) and (callback.time_remaining() or 1.0) <= 0:
            reached.append(f"fit.max_time_s above {callback.time_elapsed():.4g}")
        elif isinstance(callback, Plateau) and callback.is_reached:
            reached.append(f"fit.stop_after_plateau above {callback.worse}, or null")
        elif isinstance(callback, Target) and callback.is_reached(task):
            reached.append("fit.stop_at_target=false")
    return reached
