"""Whether a training goes on as it began: with the same model, batch, seed and data."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from src.config.from_file import GONE
from src.config.schema import TrainConfig
from src.config.trained import OF_PREDICTIONS, plain_values
from src.errors import UserError
from src.system.masking import MASK, masked

OF_THE_RUN = "seed", "hp.batch_size", "hp.batch_per"
OF_THE_STEP = "hp.accumulate", "fit.clip_norm", "fit.ema_decay"
OF_THE_MACHINE = (  # of a datamodule: these do not change the samples
    *(*OF_PREDICTIONS, "name", "check", "threads", "prefetch", "source.workers", "source.mirror"),
)
MAY_DIFFER = "model.task.optimizer.lr", "model.task.target", "model.task.sharding"  # of tables: where they are trained
OF_OPTIMIZER = "model.task.optimizer."
OPTIMIZER = f"{OF_OPTIMIZER}_target_"
ACCEPTED = "accept_changes=true"
ABSENT = object()


def function_of(config: TrainConfig, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Returns by key what decides which function a completed config trains, on which samples, in plain values.

    Left out are what a run that goes on may change: the learning rate, how long and where to train, and precision.

    Args:
        choices: what `training_choices` returns of it.
    """
    trainer = config.trainer
    step = {key: attrgetter(key)(config) for key in OF_THE_STEP}
    task = masked(config.model["task"], "model", "task")
    model = {key: value for key, value in leaves(task, "model.task.") if not is_free(key)}
    root = choices.get("data_root")
    model = {key: below(value, root) for key, value in model.items()}
    return data_choices(choices) | step | {"trainer": f"{trainer.num_nodes}x{trainer.devices}"} | model


def data_choices(choices: Any) -> dict[str, Any]:
    """Returns the part of `function_of` that every checkpoint has: seed, batch and datamodule. Old ones say less."""
    if not isinstance(choices, dict):
        return {}
    root, data = choices.get("data_root"), choices.get("datamodule")
    values = {key: choices[key] for key in OF_THE_RUN if key in choices} | {"datamodule": choices.get("group")}
    for key, value in plain_values(data) if isinstance(data, dict) else ():
        if key not in OF_THE_MACHINE and (root is not None or key != "data_dir"):
            values[f"datamodule.{key}"] = below(value, root)
    return values


def check_same_function(
    trained: Mapping[str, Any], here: Mapping[str, Any], path: Path, way_out: str, accept: bool = False
) -> str | None:
    """Raises UserError where a checkpoint is of another function, data, seed or batch, naming what differs.

    Args:
        trained, here: `function_of` the checkpoint's run, or what its checkpoint has of it, and of this one.
        path: of the checkpoint.
        way_out: what else than giving the same values is possible.
        accept: return what differs as a note instead. Another optimizer is refused: its state is another one.
    """
    differing = differences(trained, here)
    if not differing:
        return None
    before, now = ({key: values[i] for key, values in differing.items()} for i in (0, 1))
    differ = f"{path} was trained {told(before, 'with', 'without')}, this run {told(now, 'has', 'has no')}"
    if accept and OPTIMIZER not in differing:
        return f"{ACCEPTED}: {differ}"
    accepting = "" if OPTIMIZER in differing else f"accept the difference with {ACCEPTED}, "
    ways = [f"give {present(before)}"] if present(before) else []
    ways += [f"leave out {absent(before)}"] if absent(before) else []
    raise UserError(f"{differ}; {' and '.join(ways)}, {accepting}or {way_out}")


def told(values: Mapping[str, Any], have: str, lack: str) -> str:
    """Returns values by key in words, such as: with seed=1 and without hp.lr."""
    words = [f"{have} {present(values)}"] if present(values) else []
    words += [f"{lack} {absent(values)}"] if absent(values) else []
    return " and ".join(words)


def present(values: Mapping[str, Any]) -> str:
    """Returns the values that are there as a command line gives them."""
    return " ".join(f"{key}={written(value)}" for key, value in values.items() if value is not ABSENT)


def absent(values: Mapping[str, Any]) -> str:
    return " ".join(key for key, value in values.items() if value is ABSENT)


def written(value: Any) -> str:
    """Returns a plain value as Hydra's command line reads it, `null` and `true` among them."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_free(key: str) -> bool:
    """Returns whether a run that goes on may have another value of a key of the model."""
    return any(key == free or key.startswith(f"{free}.") for free in MAY_DIFFER)


def differences(trained: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns by key what the checkpoint's run had and what this one has; ABSENT where it has no such key.

    A checkpoint that holds less than `function_of`, as older ones do, is compared in what it holds.
    """
    trained = {key: value for key, value in trained.items() if key in here or key not in GONE}
    is_whole = all(key in trained for key in OF_THE_STEP)
    keys = [key for key in {**trained, **here} if is_whole or (key in trained and key in here)]
    keys = [key for key in keys if not is_free(key)]  # older checkpoints hold more of these
    both = {key: (trained.get(key, ABSENT), here.get(key, ABSENT)) for key in keys}
    both = {key: (there, now) for key, (there, now) in both.items() if there != now}
    if OPTIMIZER in both:
        both = {key: values for key, values in both.items() if key == OPTIMIZER or not key.startswith(OF_OPTIMIZER)}
    if "datamodule" in both:
        both = {key: values for key, values in both.items() if not key.startswith("datamodule.")}
    if "seed" in both:
        both.pop("datamodule.seed", None)  # it follows from that
    if "trainer" in both and (here["hp.batch_per"] == "global" or ranks(trained["trainer"]) == ranks(here["trainer"])):
        del both["trainer"]  # the batch of all ranks stays
    return both


def check_same_data(
    trained: Mapping[str, Any] | None, here: Mapping[str, Any], path: Path, way_out: str, accept: bool = False
) -> str | None:
    """Raises UserError where a checkpoint was trained with other samples; returns a note where that cannot be told.

    Args:
        trained, here: fingerprints of the data: the number of samples of each split, and `content`; None: unknown.
        path, way_out, accept: as for `check_same_function`.
    """
    if trained is None:
        return f"{path} has no fingerprint of its data (it is older): these may be others" if here else None
    if trained == here:
        return None
    differ = f"{path} was trained with other data: {described(trained)}, these are {described(here)}"
    if accept:
        return f"{ACCEPTED}: {differ}"
    raise UserError(f"{differ}; give those, accept these with {ACCEPTED}, or {way_out}")


def described(data: Mapping[str, Any]) -> str:
    """Returns the splits' sizes and the beginning of the content's hash in words."""
    sizes = " and ".join(f"{count} {split}" for split, count in data.items() if split != "content")
    return f"{sizes or 'no'} samples with the hash {str(data.get('content'))[:12]}"


def ranks(trainer: Any) -> int:
    """Returns the number of ranks of a topology such as 2x8; 0 for what is none."""
    nodes, _, devices = str(trainer).partition("x")
    return int(nodes) * int(devices) if nodes.isdecimal() and devices.isdecimal() else 0


def leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields values by dotted key, names of classes among them, but nothing that was a secret."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif MASK not in str(value) and "${" not in str(value):
            yield f"{prefix}{key}", value


def below(value: Any, root: Any) -> Any:
    """Returns a path below `root` relative to it, and anything else as it is."""
    if isinstance(value, str) and isinstance(root, str) and Path(value).is_relative_to(root):
        return str(Path(value).relative_to(root))
    return value
