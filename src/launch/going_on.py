"""Where the checkpoint of a run that has ended lies, and the command that goes on from it."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from hydra.core.hydra_config import HydraConfig

from src.config.schema import TrainConfig
from src.config.settings import config_options, given_overrides
from src.launch.devices import sbatch_command
from src.system.group import ANSWERED_FOR, started_by
from src.system.masking import masked_overrides

PLAIN = re.compile(r"[\w./+-]+")  # a path that Hydra reads without quotes


def way_on(config: TrainConfig, checkpoint: Path | None, time_is_up: bool = False) -> dict[str, Any]:
    """Returns the record's `go_on`: the checkpoint, None without one, and the command, None for code of one's own.

    Args:
        time_is_up: whether `fit.max_time_s` ended the run. It counts all legs: the command then doubles it.
    """
    command = command_with(changed(config, checkpoint, time_is_up), config) if HydraConfig.initialized() else None
    return {"checkpoint": None if checkpoint is None else str(checkpoint), "command": command}


def changed(config: TrainConfig, checkpoint: Path | None, time_is_up: bool) -> list[str]:
    """Returns the given overrides, without secrets, with what makes them go on from the checkpoint."""
    keys = ["ckpt_path", "resume", *(["fit.max_time_s"] if time_is_up else [])]
    overrides = (
        given_overrides() if checkpoint is None else [text for text in given_overrides() if key_of(text) not in keys]
    )
    added = []
    if checkpoint is not None:
        last = Path(config.output_dir) / "checkpoints" / "last.ckpt"
        is_same_folder = checkpoint == last and "output_dir" in map(key_of, overrides)
        added.append("resume=true" if is_same_folder else f"ckpt_path={quoted(checkpoint)}")
    if time_is_up:
        added.append(f"fit.max_time_s={2 * (config.fit.max_time_s or 0):g}")
    return [*masked_overrides([*overrides, *added]), *config_options()]


def command_with(overrides: Sequence[str], config: TrainConfig) -> str:
    """Returns the command that starts this job with these overrides, as it was started: alone, by torchrun or SLURM."""
    script = os.path.relpath(sys.argv[0])
    by = None if ANSWERED_FOR in os.environ else started_by()
    if by == "slurm":
        return sbatch_command(config.trainer, overrides)
    return shlex.join([*(by_torchrun() if by == "torchrun" else ["python"]), script, *overrides])


def by_torchrun() -> list[str]:
    """Returns how torchrun was called, up to the script; its agent is the parent of its ranks."""
    called = psutil.Process(os.getppid()).cmdline()
    scripts = [i for i, text in enumerate(called) if i and text.endswith(".py") and "torchrun" not in text]
    words = called[: scripts[0]] if scripts else called
    if len(words) > 1 and Path(words[1]).name == "torchrun":
        return ["torchrun", *words[2:]]
    return ["python", *words[1:]]


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def quoted(path: Path) -> str:
    """Returns the path as the value of an override."""
    text = str(path)
    return text if PLAIN.fullmatch(text) else "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
