"""Reads an export as a checkpoint of numbers and texts, of which `src.trained` makes a network with preprocessing."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from src.config.trained import RUN
from src.errors import UserError
from src.pretrained.weights import INDEX, places_in
from src.system.plain import check_plain
from src.system.reading import read_json
from src.training.checkpoints import CONFIGS, WRITTEN_BY, first_line

NAME = "reprise.json"
REST = "task.safetensors"  # tensors of the task that are not its network's, such as a mean and a deviation
NETWORK = "network."
MODEL = "model_config"  # a checkpoint's key
KEYS = {MODEL: MODEL, RUN: "trained_with", WRITTEN_BY: "written_by"}  # of a checkpoint, by ours
OF_THE_TASK = "checkpoint_keys"  # what `Task.checkpoint_keys` names; absent where only other libraries read the weights
FILE_NAME = re.compile(r"[\w-]+\.safetensors")
LONGEST = 10**7  # characters of a text, such as a vocabulary
ADVICE = "export or download it again"


def write_rest(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Writes the tensors that are not the network's, if there are any."""
    rest = {key: tensor.detach().cpu().clone() for key, tensor in state.items() if not key.startswith(NETWORK)}
    if rest:
        save_file(rest, folder / REST, metadata={"format": "pt"})


def read_export(folder: Path) -> dict[str, Any]:
    """Returns what a checkpoint of the exported network holds, without the state of its training.

    Raises UserError for a folder that is no export, is damaged, or that other libraries alone can read.
    """
    file = folder / NAME
    if not file.is_file():
        raise UserError(f"{folder} is no export (it has no {NAME}); give one that export.py --to safetensors wrote")
    record = read_json(file, ADVICE)
    check_plain(record, str(file), longest=LONGEST)
    if not isinstance(record, dict) or not isinstance(record.get(OF_THE_TASK), dict):
        kind = record.get("format") if isinstance(record, dict) else None
        raise UserError(f"{folder} is an export to {kind!s:.20}, for other libraries; export --to safetensors")
    checkpoint = {**record[OF_THE_TASK], **{key: record.get(name) for key, name in KEYS.items()}}
    for key in CONFIGS:
        check_plain(checkpoint.get(key), f"{file}: {key}")
    return {**checkpoint, "state_dict": read_state(folder)}


def read_state(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors of an export by a checkpoint's names."""
    try:
        files = [*dict.fromkeys(places_in(folder).values())]
        if wrong := [name for name in files if not FILE_NAME.fullmatch(name)]:
            raise UserError(f"{folder / INDEX}: {wrong[0]!r:.80} is no file of weights; {ADVICE}")
        state = {NETWORK + key: tensor for name in files for key, tensor in load_file(folder / name).items()}
        return state | (load_file(folder / REST) if (folder / REST).is_file() else {})
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: its weights cannot be read ({first_line(error)}); {ADVICE}") from None
