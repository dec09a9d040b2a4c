"""The values of each option of a config that its type, or the comment behind it in conf/, allows besides its own."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
import yaml
from omegaconf import DictConfig, OmegaConf

from src.config.hints import allows, is_number, members
from src.config.ranges import Range
from src.config.reference import _field_comments
from src.config.settings import CONF
from src.config.values import parameters_of, target_of
from src.training import schedule
from src.training.update_kernels import RULES

# Where neither type nor comment gives a value that turns an option on: numbers whose size depends on what they are of.
SAMPLES = {
    "fit.max_time_s": "600",
    "fit.ema_decay": "0.9",
    "fit.eval_every_n_steps": "5",
    "fit.checkpoint_every_n_steps": "5",
    "model.task.network.norm_batch": "16",
    "model.task.augment.cutout": "8",
    "model.task.sizes": "{n_layers:2}",
    "model.task.r_drop": "1.0",
    "model.task.network.strides": "[2,1,1,1,2,1,2,1,1,1,1,1,1,1]",
    "model.predict.temperatures": "[0.2,0.5]",
    "model.predict.interpolate": "[CCO,CCN]",
    "datamodule.max_rows": "1000",
    "datamodule.generate.max_rows": "1000",
    "datamodule.source.limit": "200",
    "datamodule.length": "32",
    "datamodule.test_batch_size": "7",
    "num_samples": "7",
}


class Option(NamedTuple):
    """A key of a config and one more value that it may have, as an override."""

    key: str
    value: str
    is_new: bool = False  # the key is an argument of its class that conf/ does not name

    @property
    def override(self) -> str:
        return f"{'+' if self.is_new else ''}{self.key}={self.value}"


def options_of(config: DictConfig, schema: type, under: str = "") -> list[Option]:
    """Returns every option of a composed config at or below the key `under`, each with one value it does not have.

    Args:
        schema: the dataclass of the entry point's config.
    """
    options = [option for option in _section("", config, types_of(schema)) if option.key.startswith(under)]
    return list(dict.fromkeys(options))


def types_of(section: type) -> dict[str, Any]:
    """Returns the type of each field of a dataclass, with its range."""
    return get_type_hints(section, include_extras=True)


def _section(prefix: str, config: DictConfig, hints: Mapping[str, Any]) -> Iterator[Option]:
    for name in config:
        key = f"{prefix}{name}"
        hint = hints.get(str(name), Any)
        node = None if OmegaConf.is_missing(config, name) else config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            yield from _of_mapping(key, node, hint)
            continue
        if OmegaConf.is_missing(config, name) or (follows(node) and prefix.startswith(("model.", "datamodule."))):
            continue
        try:
            current = OmegaConf.to_container(node) if OmegaConf.is_config(node) else config[name]
        except Exception:  # an interpolation of what this config has not
            continue
        for value in alternatives(hint, current, comments().get(key, ""), SAMPLES.get(key)):
            yield Option(key, value)


def _of_mapping(key: str, node: DictConfig, hint: Any) -> Iterator[Option]:
    """Yields the options below a mapping, and those that replace it."""
    plain = OmegaConf.to_container(node)
    assert isinstance(plain, dict)
    section = next((member for member in members(hint) if is_dataclass(member) and isinstance(member, type)), None)
    if "_target_" in plain:
        target = target_of(key, plain["_target_"])
        hints = parameters_of(target)
        yield from _section(f"{key}.", node, {name: parameter.hint for name, parameter in hints.items()})
        for name, parameter in hints.items():
            if name not in plain and name != "**" and target.__module__.startswith("src."):
                default = inspect.signature(target).parameters.get(name)
                if default is not None and default.default is not inspect.Parameter.empty:
                    for value in choices(parameter.hint, default.default):
                        if value != "0" and not value.startswith("{"):  # what other objects are given by the task
                            yield Option(f"{key}.{name}", value, is_new=True)
        if NoneType in members(hint):
            yield Option(key, "null")
    else:
        yield from _section(f"{key}.", node, types_of(section) if section is not None else {})


def follows(node: Any) -> bool:
    """Returns whether a value is another key's, whose options it has."""
    return "${" in str(node._value()) if node is not None else False


def alternatives(hint: Any, current: Any, comment: str, sample: str | None = None) -> list[str]:
    """Returns the values of a type besides `current`, as the command line has them.

    All names of a Literal, both truth values, null, a number that the type names apart; 0 for a number that may be 0,
    and a number above it (`sample`) for one that is; what the comment names.
    """
    values = choices(hint, current)
    if current is None or (current == 0 and not isinstance(current, bool)):
        values += [sample] if sample else samples(hint)
    values += [text for text in documented(comment, hint) if allows(hint, yaml.safe_load(text)) or "_target_" in text]
    return [value for value in dict.fromkeys(values) if value != shown(current)]


def choices(hint: Any, current: Any) -> list[str]:
    """Returns what a type names itself: choices, truth values, null, special numbers, a class of ours."""
    values = list[str]()
    for member in members(hint):
        base, *limits = get_args(member) if get_origin(member) is Annotated else (member,)
        for part in (part for limit in (base, *limits) for part in members(limit)):
            if get_origin(part) is Literal:
                values += [shown(value) for value in get_args(part)]
            elif isinstance(part, Range) and is_number(current):
                values += [str(part.also[0])] if part.also else []
                values += ["0"] if 0 in part and current else []
        if base is bool:
            values += ["true", "false"]
        elif base is NoneType:
            values += ["null"]
        elif isinstance(base, type) and base.__module__.startswith("src.") and not is_protocol(base):
            values += [f"{{_target_:{base.__module__}.{base.__qualname__}}}"]
    return [value for value in dict.fromkeys(values) if value != shown(current)]


def samples(hint: Any) -> list[str]:
    """Returns a number in the first range of a type, above 0 and below its bounds; nothing without one."""
    for member in members(hint):
        base, *limits = get_args(member) if get_origin(member) is Annotated else (member,)
        for limit in limits:
            if isinstance(limit, Range):
                low = max(limit.least, limit.above, 0)
                high = min(limit.most, limit.below)
                if base is int:
                    return [str(int(min(low + 1, high)))]
                return [f"{(low + high) / 2 if high <= 1 else low + 1:g}"]
    return []


def documented(comment: str, hint: Any) -> list[str]:
    """Returns the values that a comment names: quoted ones, a call in braces, a number before a colon.

    Also names after "or" that stand for a text. A part in braces that ends in "..." is a sketch and no value.
    """
    values = re.findall(r"'([\[{].*?[\]}])'", comment)
    values += [text.replace(" ", "") for text in re.findall(r"\{_target_:[^}]*\}", comment)]
    values += re.findall(r"(?:^|; )(\d+(?:\.\d+)?): ", comment) if _takes_numbers(hint) else []
    return values


def _takes_numbers(hint: Any) -> bool:
    bases = [get_args(member)[0] if get_origin(member) is Annotated else member for member in members(hint)]
    return int in bases or float in bases


def is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def shown(value: Any) -> str:
    """Returns a value as an override has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def comments() -> dict[str, str]:
    """Returns the comment behind each key of models and datamodules, and behind each field of the schema."""
    from src.config.schema import TrainConfig

    texts = dict[str, str]()
    for group in ("model", "datamodule"):
        for file in sorted((CONF / group).glob("*.yaml")):
            for key, comment in commented_keys(file, group):
                texts.setdefault(key, comment)
    for part in fields(TrainConfig):
        if is_dataclass(part.type) and isinstance(part.type, type):
            of_fields = _field_comments(part.type)
            texts |= {f"{part.name}.{name}": comment for name, comment in of_fields.items()}
    return texts


def commented_keys(file: Path, group: str) -> Iterator[tuple[str, str]]:
    """Yields every key of a file of conf/ that has a comment behind its value, nested ones dotted, and the comment."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, str]]:
        for key, value in node.value:
            if isinstance(value, yaml.MappingNode) and not value.flow_style:
                yield from walk(value, f"{prefix}{key.value}.")
            elif value.end_mark.line < len(lines):
                _, _, comment = lines[value.end_mark.line][value.end_mark.column :].partition("#")
                if comment.strip():
                    yield f"{prefix}{key.value}", comment.strip()

    root = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        yield from walk(root, "" if "@package _global_" in lines[0] else f"{group}.")


def group_options(group: str) -> list[str]:
    """Returns the options of a config group."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def kernels_of(config: DictConfig) -> list[str]:
    """Returns the names of the model's fast modules, and that of its optimiser's kernels if there are any."""
    names = list(target_of("model.task", config.model.task._target_).replacements)
    optimizer = config.model.task.optimizer._target_.rpartition(".")[2].lower()
    return [*names, *(name for name in RULES if optimizer in (name, f"{name}w"))]


def schedules() -> list[str]:
    """Returns the schedules of src/training/schedule.py, as values of `model.task.schedule`."""
    classes = inspect.getmembers(importlib.import_module(schedule.__name__), inspect.isclass)
    kinds = [kind for _, kind in classes if kind.__module__ == schedule.__name__ and not is_protocol(kind)]
    named = [kind for kind in kinds if hasattr(kind, "total") or "total" in getattr(kind, "__dataclass_fields__", {})]
    return [f"{{_target_:{schedule.__name__}.{kind.__name__}}}" for kind in named if kind.__name__ != "ScheduledRate"]


def optimizers() -> list[str]:
    """Returns the optimisers that the models in conf/ use, by name, and torch's own that ours build on."""
    texts = [file.read_text(encoding="utf-8") for file in sorted((CONF / "model").glob("*.yaml"))]
    used = {name for text in texts for name in re.findall(r"optimizer: \{_target_: ([\w.]+)", text)}
    bases = {base for name in used for base in target_of("model.task.optimizer", name).__mro__[1:-1]}
    torchs = {f"torch.optim.{base.__name__}" for base in bases if base is not torch.optim.Optimizer}
    return sorted(used | {name for name in torchs if hasattr(torch.optim, name.rpartition(".")[2])})
