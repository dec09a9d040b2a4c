"""What runs are told apart by: the keys of a record's config and environment that can change its figures."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from src.report.record import Record

# Keys that do not change the result: where it is written, who watches it, and what other cases would have.
NOT_COMPARED = (
    *("seed", "datamodule.seed", "output_dir", "output_root", "data_root", "datamodule.data_dir", "ckpt_path"),
    *("logger", "callbacks", "sweep", "pictures", "note", "resume", "accept_changes"),
    *("hardware", "trainer", "experiment"),
    *("model.hp", "model.recipe", "model.predict", "model.monitor", "model.quick", "model.paddle"),
)
# A group of the config that is another one as a whole: its name says it, its other keys follow.
NAMED = ("model", "datamodule", "precision")

# Of the environment: what can change a speed. The others (the operating system's build, the command) are not shown.
MACHINE = ("gpus", "driver", "cuda", "cudnn", "cpu", "cpu_cores", "python")


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the config's values by dotted key; a list is one value."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def compared_config(record: Record) -> dict[str, str]:
    """Returns the values, as texts, of the config keys that can change the result, and of the case."""
    case = record.case
    values = {"trainer": case.trainer, "hardware": case.hardware, "hp.batch_size": case.batch_size}
    config = {key: text(value) for key, value in values.items()}
    for key, value in flat(record.config):
        if not any(key == other or key.startswith(f"{other}.") for other in NOT_COMPARED):
            config[key] = text(value)
    for name in NAMED:
        config[f"{name}.name"] = {"model": case.model, "datamodule": case.datamodule, "precision": case.precision}[name]
    config["callbacks"] = ", ".join(sorted(map(str, mapping(record.config.get("callbacks")))))
    return config


def environment(record: Record) -> dict[str, str]:
    """Returns what a record says of its machine, libraries and commit, as texts by key."""
    values = record.environment
    texts = {key: text(values[key]) for key in MACHINE if values.get(key) is not None}
    texts |= {str(key): text(value) for key, value in mapping(values.get("libraries")).items()}
    git = mapping(values.get("git"))
    if git.get("commit"):
        texts["commit"] = str(git["commit"])[:10]
    if git.get("dirty"):
        texts["uncommitted changes"] = "yes"
    return texts


def mapping(value: Any) -> dict[Any, Any]:
    """Returns an object of a record; an empty one for anything else, since other programs write records too."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what loggers show of a run, to compare runs by: names of its parts and hyper-parameters.

    Args:
        config: of a run, or of its record, plain and without secrets.
    """
    groups = ("model", "datamodule", "precision", "trainer", "hardware")
    names = {group: mapping(config[group]).get("name") for group in groups if group in config}
    kept = {key: config[key] for key in ("hp", "fit", "seed") if key in config}
    return names | kept | {"task": mapping(config.get("model")).get("task")}


def changed_hp(config: Any, batch_size: int | None) -> str:
    """Returns what a run's hyper-parameters change of its model's default ones: 'bs=3584,lr=0.0001', or '/'."""
    usual, hp = config["model"]["hp"]["default"], config["hp"]
    changed = {"bs": batch_size} if batch_size != usual["batch_size"] else {}
    changed |= {"lr": hp["lr"]} if hp["lr"] != usual["lr"] else {}
    accumulate = hp.get("accumulate", 1)
    changed |= {"accumulate": accumulate} if accumulate != usual.get("accumulate", 1) else {}
    return ",".join(f"{name}={value}" for name, value in changed.items()) or "/"
