"""Checks every value of a config against the type of its field or argument: the schema's, or its class's signature."""

import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from src.config.hints import allows, leaves, members, words_of
from src.config.ranges import MOST_NUMBER, MOST_WHOLE
from src.config.schema import TrainConfig, typed
from src.config.settings import check_complete, check_fix_hp, check_loggers
from src.errors import UserError
from src.measure import starting
from src.system.home import PACKAGE

HYDRAS = ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")
MODEL_KEYS = ("name", "task", "hp", "recipe", "predict", "monitor", "quick", "paddle")
LONGEST = 80  # characters of a value in a message


class Parameter(NamedTuple):
    """The type of a field or an argument, and whether it must be given."""

    hint: Any
    is_needed: bool


def check_training(config: DictConfig) -> TrainConfig:
    """Returns a training config with all of its values, of which `hardware` may be `auto`. Changes nothing.

    Raises UserError, or OmegaConf's own error, for one that cannot be run.
    """
    check_fix_hp(config)
    config = checked(config, TrainConfig)
    _check_kinds(config)
    check_loggers(config)
    if config.fit.stop_after_plateau and not (config.fit.eval_every_n_epochs or config.fit.eval_every_n_steps):
        raise UserError("fit.stop_after_plateau needs evaluations; give fit.eval_every_n_epochs=1")
    if config.ckpt_path and not Path(config.ckpt_path).exists():
        raise UserError(f"{config.ckpt_path}: there is no such checkpoint; give the path of a last.ckpt or best.ckpt")
    world = config.trainer.num_nodes * config.trainer.devices
    if config.hp.batch_per == "global" and config.hp.batch_size % world:
        raise UserError(f"hp.batch_size={config.hp.batch_size} is global and does not divide by {world} ranks")
    name = f"{config.trainer.num_nodes}x{config.trainer.devices}"
    if config.trainer.name != name:
        raise UserError(f"trainer.name={config.trainer.name} but its nodes and devices are {name}; leave the name out")
    if config.fit.stop_at_target:
        _check_target(config)
    return typed(config)


def check_sections(config: DictConfig, schema: type) -> None:
    """Raises UserError for the first value that is not allowed outside what `_target_` names: it imports no class."""
    check_values("", _without_calls(OmegaConf.to_container(config)), schema)


def _without_calls(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {key: _without_calls(part) for key, part in section.items()
            if not (isinstance(part, dict) and "_target_" in part)}  # fmt: skip


def _check_kinds(config: DictConfig) -> None:
    """Raises UserError for a part of a run that does not say its class, or says one of another kind.

    Also for a key of the model that is written wrongly.
    """
    for name in config.model:  # a model of one's own may have others
        near = get_close_matches(str(name), MODEL_KEYS, n=1, cutoff=0.75)
        if near and name not in MODEL_KEYS:
            raise UserError(f"model has no key {str(name)!r}, did you mean {near[0]!r}?")
    for key in ("hp", "recipe", "predict", "quick", "paddle"):
        part = config.model.get(key)
        if part is not None and not isinstance(part, DictConfig):
            raise UserError(f"model.{key}={part} is not allowed: it is a section; give its keys, or leave it out")
    kinds = {"model.task": "Task", "datamodule": "DataModule"}
    for group, kind in {"callbacks": "Callback", "logger": "Logger"}.items():
        kinds |= {f"{group}.{name}": kind for name in config[group] or {}}
    for key, kind in kinds.items():
        part = OmegaConf.select(config, key)
        if not isinstance(part, DictConfig) or "_target_" not in part:
            shown = "null" if part is None else part
            raise UserError(f"{key}={shown} is not allowed; give {key}._target_=CLASS, a {kind}, or leave {key} out")
        bases = [base.__name__ for base in getattr(target_of(key, part["_target_"]), "__mro__", ())]
        if kind not in bases:
            raise UserError(f"{key}._target_={part['_target_']} is no {kind}; give the class of one")


def _check_target(config: DictConfig) -> None:
    """Raises UserError where training cannot end at a target: there is none, or nothing is evaluated."""
    task = config.model.task
    argument = inspect.signature(target_of("model.task", task["_target_"])).parameters.get("target")
    if task.get("target", argument and argument.default) in (None, {}):
        raise UserError("fit.stop_at_target needs a target of the final metric; give model.task.target=VALUE")
    if not (config.fit.eval_every_n_epochs or config.fit.eval_every_n_steps):
        raise UserError("fit.stop_at_target needs evaluations; give fit.eval_every_n_epochs=1")


def checked(config: DictConfig, schema: type) -> DictConfig:
    """Returns a resolved copy. Raises UserError naming the first key without a value, or whose value is not allowed."""
    check_complete(config)
    check_values("", config, schema)  # first, so that a message names the key that was given, not one that follows it
    config = config.copy()
    OmegaConf.resolve(config)
    check_values("", config, schema)
    return config


def check_values(prefix: str, config: Any, schema: Any = None) -> None:
    """Raises UserError naming the first value of a config that its type does not allow.

    What is missing or an interpolation is left out: nothing may need it, as the data where molecules are generated.

    Args:
        prefix: what stands before its keys, such as "fix_hp.".
        schema: the dataclass or function with the types; what `_target_` names if not given.
    """
    plain: Any = OmegaConf.to_container(config) if OmegaConf.is_config(config) else config
    if schema is None:
        _check(prefix.rstrip("."), plain, Any)
    else:
        _check_fields(prefix, plain, parameters_of(schema))


def check_plugin(config: DictConfig, name: str) -> None:
    """Raises UserError naming the first value of `hydra.sweeper` or `hydra.launcher` that is not allowed."""
    check_values(f"hydra.{name}", OmegaConf.to_container(config.hydra[name], resolve=True))


def _is_open(value: Any) -> bool:
    return isinstance(value, str) and (value == MISSING or "${" in value)


def _check(key: str, value: Any, hint: Any) -> None:
    if _is_open(value):
        return
    if isinstance(value, dict) and "_target_" in value:
        _check_call(key, value)
        return
    section = next((member for member in members(hint) if is_dataclass(member)), None)
    if isinstance(value, dict) and section is not None:
        _check_fields(f"{key}.", value, parameters_of(section))
    elif isinstance(value, dict) and hint is Any:
        for name, part in value.items():
            _check(f"{key}.{name}", part, Any)
    elif not allows(hint, value):
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        words = words_of(hint)
        raise UserError(
            f"{key}={shown} is not allowed; expected {words}{'' if re.search('at most| to ', words) else _most(value)}"
        )


def _most(value: Any) -> str:
    """Returns the largest number there can be, where this one is beyond it."""
    if isinstance(value, int) and value > MOST_WHOLE:
        return f", at most {MOST_WHOLE}"
    return f", at most {MOST_NUMBER}" if isinstance(value, float) and MOST_NUMBER < value < math.inf else ""


def _check_call(key: str, value: dict[Any, Any]) -> None:
    """Raises UserError unless the class or function that `_target_` names takes these arguments."""
    target = target_of(key, value["_target_"])
    if "_args_" in value:  # by position: no class of ours is configured so
        return
    arguments = {str(name): argument for name, argument in value.items() if name not in HYDRAS}
    parameters = parameters_of(target)
    _check_fields(f"{key}.", arguments, parameters)
    if not value.get("_partial_"):
        for name, parameter in parameters.items():
            if parameter.is_needed and name not in arguments:
                raise UserError(f"{key}.{name} has no value; give it as {key}.{name}=VALUE")
    if target.__module__.startswith("torch.optim") and not any(map(_is_open, leaves(arguments))):
        _try_optimizer(key, target, arguments)


def _check_fields(prefix: str, values: Mapping[Any, Any], parameters: Mapping[str, Parameter]) -> None:
    for name, value in values.items():
        if name in parameters:
            _check(f"{prefix}{name}", value, parameters[name].hint)
        elif "**" not in parameters:
            near = get_close_matches(str(name), parameters, n=1, cutoff=0.6)
            meant = f", did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"{prefix.rstrip('.')} has no key {str(name)!r}{meant}; see `--cfg job` for every key there is"
            )


def _try_optimizer(key: str, target: Any, arguments: dict[str, Any]) -> None:
    """Raises UserError for what torch's optimisers check themselves."""
    import torch

    try:
        target([torch.nn.Parameter(torch.zeros(1))], **arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{key}: {str(error).splitlines()[0]}; correct it") from None


def target_of(key: str, name: Any) -> Any:
    """Returns what `_target_` names. Raises UserError unless it can be called."""
    module, _, attribute = str(name).rpartition(".")
    is_loaded = module in sys.modules
    if not is_loaded:  # torch comes along with most
        starting.ended("config")
    try:
        target = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"{key}._target_={name} needs the package {error.name}; install it with pip") from None
        target = None
    except (ImportError, ValueError):
        target = None
    finally:
        if not is_loaded:
            starting.ended("imports")
    if not callable(target):
        raise UserError(f"{key}._target_={name} is no class or function; see `--cfg job` for the one that was there")
    return target


@cache
def parameters_of(target: Any) -> dict[str, Parameter]:
    """Returns the arguments by name; with the key `**` where any other may be given.

    Where a class of ours passes `**options` on to its base class, they are those of the base class too. Other packages'
    types are not used: they are looser, and some cannot be evaluated.
    """
    is_ours = target.__module__.startswith((f"{PACKAGE}.", "hydra_plugins.reprise"))
    functions = [target]
    if is_ours and isinstance(target, type):
        functions = [vars(base)["__init__"] for base in target.__mro__[:-1] if "__init__" in vars(base)]
    parameters: dict[str, Parameter] = {}
    for function in functions:
        has_types = is_ours and function.__module__.startswith(f"{PACKAGE}.")
        hints = get_type_hints(function, include_extras=True) if has_types else {}
        try:
            arguments = [
                argument for argument in inspect.signature(function).parameters.values() if argument.name != "self"
            ]
        except ValueError:  # of a builtin type
            return parameters | {"**": Parameter(Any, False)}
        for argument in arguments:
            if argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
                parameters.setdefault(
                    argument.name, Parameter(hints.get(argument.name, Any), argument.default is argument.empty)
                )
        if all(argument.kind != argument.VAR_KEYWORD for argument in arguments):
            return parameters
    is_open = not functions[-1].__module__.startswith(f"{PACKAGE}.")
    return parameters | {"**": Parameter(Any, False)} if is_open else parameters
