"""Checks what a training takes from a checkpoint beside weights, before anything reads it: counters, states, optimiser.

Each part has the keys and types of the same part of the trainer that reads it. Lightning takes the content of a
checkpoint as attributes of its own objects: a text in the place of a number would end the run anywhere later on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from src.errors import UserError

LARGEST = 2**40  # of a counter
POSITION = {"epoch": 0, "position": 0}  # the state of a loader
OF_ALL = "step", "mu_product", "mu", "eta"  # an optimiser's states that are one number for a parameter
OF_ROWS = "row_var", "col_var"  # Adafactor's
OF_LOADERS = {"_batches_that_stepped": 0, "combined_loader": [POSITION]}  # in the states of loops, once they have begun


def check_state(checkpoint: dict[str, Any], path: Path, trainer: pl.Trainer, datamodule: Any) -> None:
    """Raises UserError naming the first part of a checkpoint that is not of the kind that this trainer reads."""
    callbacks = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
    scaler = {type(plugin).__qualname__: plugin.state_dict() for plugin in [trainer.precision_plugin]}
    loops = {
        name: {key: OF_LOADERS if key.endswith("state_dict") else kind for key, kind in loop.state_dict().items()}
        for name, loop in loops_of(trainer).items()
    }
    expected = {"epoch": 0, "global_step": 0, "loops": loops, "callbacks": numbers(callbacks), **scaler}
    expected[type(datamodule).__qualname__] = POSITION
    for key, kind in expected.items():
        if key in checkpoint:
            check_like(checkpoint[key], kind, f"{path}: {key}")


def loops_of(trainer: pl.Trainer) -> dict[str, Any]:
    return {"fit_loop": trainer.fit_loop, "validate_loop": trainer.validate_loop,
            "test_loop": trainer.test_loop, "predict_loop": trainer.predict_loop}  # fmt: skip


def check_like(value: Any, kind: Any, key: str) -> None:
    """Raises UserError unless a value has the type of `kind` and, as a dict, only keys of it with such values.

    None is the kind of a number that is not there yet, {} that of any dict, and a list has any number of values like
    its kind's first. A whole number is a counter, from 0 to LARGEST.
    """
    if isinstance(kind, Mapping):
        is_same = isinstance(value, dict)
        for name, part in value.items() if is_same and kind else ():
            if name in kind:
                check_like(part, kind[name], f"{key}.{name}")
            elif not key.endswith(": callbacks"):  # else of a callback that this run does not have
                raise UserError(f"{key} has no key {name!r:.80}; give a checkpoint that train.py wrote")
    elif isinstance(kind, list | tuple):
        is_same = isinstance(value, list | tuple)
        for i, part in enumerate(value if is_same and kind else ()):
            check_like(part, kind[0], f"{key}.{i}")
    elif isinstance(kind, bool):
        is_same = isinstance(value, bool)
    elif isinstance(kind, int):
        is_same = is_whole(value) and 0 <= value < LARGEST
    elif isinstance(kind, float) or kind is None:
        is_one = isinstance(value, Tensor) and value.numel() == 1
        is_same = isinstance(value, float) or is_whole(value) or (kind is None and (value is None or is_one))
    else:
        is_same = isinstance(value, type(kind))
    if not is_same:
        raise UserError(f"{key} is {value!r:.80}, not of the kind {kind!r:.80}; give a checkpoint that train.py wrote")


def numbers(kind: Any) -> Any:
    """Returns the kind of a callback's state: its numbers are no counters, as a time that begins with 0."""
    if isinstance(kind, Mapping):
        return {name: numbers(part) for name, part in kind.items()}
    return float(kind) if is_whole(kind) else kind


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Raises UserError where a restored optimiser holds settings or states that its steps cannot use."""
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            usual = optimizer.defaults.get(name)
            if name != "params" and not is_setting(value, usual):
                where = f"optimizer_states.{number}.{name}"
                raise UserError(f"{path}: {where} is {value!r:.80}; give a checkpoint that train.py wrote")
    parts: dict[bool, set[str]] = {}  # of matrices and of vectors: an optimiser may treat them differently
    for parameter, state in optimizer.state.items():
        parts[parameter.ndim > 1] = parts.get(parameter.ndim > 1, set()) | set(state)
    for parameter, state in optimizer.state.items():
        if state and (missing := sorted(parts[parameter.ndim > 1] - set(state), key=str)):
            raise UserError(f"{path}: the optimiser lacks {missing[0]!r:.80} of a parameter; give another checkpoint")
        for name, value in state.items():
            if not (value is None or (name in OF_ALL and is_setting(value, 0)) or fits(value, parameter, name)):
                raise UserError(f"{path}: the optimiser's {name} is not its parameter's; give another checkpoint")


def is_setting(value: Any, usual: Any) -> bool:
    """Returns whether a value can be in the place of an optimiser's usual one; a number may be a tensor of one."""
    if isinstance(usual, tuple | list):
        return isinstance(value, tuple | list) and len(value) == len(usual) and all(map(is_setting, value, usual))
    if isinstance(value, Tensor):
        return value.numel() == 1 and not isinstance(usual, bool)
    return isinstance(value, int | float) or type(value) is type(usual)


def fits(state: Any, parameter: Tensor, name: str) -> bool:
    """Returns whether an optimiser's state has a number for each element of a parameter, or each row or column."""
    if not isinstance(state, Tensor) or state.layout is not torch.strided or state.dtype.is_complex or state.is_meta:
        return False
    if name not in OF_ROWS:
        return state.shape == parameter.shape
    return state.ndim == parameter.ndim and all(a in (1, b) for a, b in zip(state.shape, parameter.shape, strict=True))
