"""Values that a file gives for a config: of keys that the config has, each of its key's type, never merged as text.

A checkpoint may come from anybody. Of its config `values_for` takes numbers, texts, lists and tables of them. Which
class is made at a place is decided here: by the config, or by the annotation of the argument in our own code. A name in
the file is compared with those and imported by nobody. Nothing that it gives is an interpolation.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from omegaconf import MISSING

from src.config.hints import allows, members, words_of
from src.config.values import Parameter, parameters_of, target_of
from src.errors import UserError
from src.system.home import PACKAGE
from src.system.masking import MASK
from src.system.plain import check_plain

TARGET, PARTIAL = "_target_", "_partial_"
CALLABLE = get_origin(Callable[[], Any])
# Keys of older checkpoints that decided how something was computed, not what: ignored where a config has them no more.
GONE = frozenset({"model.task.network.execution"})  # until 2026-11-28; now execution.kernels

# What was done before there was a key that older checkpoints lack, by the function it is an argument of.
BEFORE: dict[str, dict[str, Any]] = {
    "src.datamodules.graphs.files.load": {"split": "random"},  # until 2026-11-28, as the next
    "src.datamodules.molecules.smiles_file.load": {"split": "random", "rare_below": 1},
}


def values_for(here: Any, values: Any, path: Path, prefix: str, chooses: bool = False) -> dict[str, Any]:
    """Returns the plain values of a file for one section of a config, with the `_target_`s of classes they are for.

    The value of a key that `is_withheld` is returned as it is: the caller leaves it out or replaces it.

    Args:
        here: the section as the config has it, a plain dict with a `_target_`, not resolved.
        values: the file's.
        path: of the file, for messages.
        prefix: the section's key, for messages.
        chooses: whether the file's `_target_` decides between the classes that a place may hold; else it is ignored.

    Raises UserError naming the first key that the section does not have, unless it is GONE, or whose value its type
    does not allow.
    """
    if not isinstance(values, dict) or not isinstance(here, dict):
        raise UserError(f"{path}: {prefix} is no section of a config; give a checkpoint that train.py wrote")
    check_plain(values, f"{path}: {prefix}")
    return Section(path, chooses).call(prefix, values, object, here)


def is_withheld(value: Any) -> bool:
    """Returns whether a file leaves this value out: it was a secret, or came from the environment."""
    return isinstance(value, str) and (MASK in value or "${" in value)


class Section:
    """Matches the values of one file with types.

    Args:
        path, chooses: as for `values_for`.
    """

    def __init__(self, path: Path, chooses: bool) -> None:
        self.path, self.chooses = path, chooses

    def call(self, key: str, values: Mapping[str, Any], hint: Any, here: Any) -> dict[str, Any]:
        """Returns the values of a section with a class, with `_target_` and `_partial_` of that class."""
        classes = classes_at(hint, here)
        name = values.get(TARGET)
        if not self.chooses and isinstance(here, dict) and TARGET in here:
            name = here[TARGET]
        if not isinstance(name, str) or name not in classes:
            others = f" expected {' or '.join(sorted(classes)[:5])};" if classes else ""
            raise UserError(
                f"{self.path}: {key}._target_ is {name!r:.80}, which was not made;{others} "
                f"if that is code of your own, give {key}._target_ on the command line"
            )
        target, is_partial = classes[name]
        if PARTIAL in values and values[PARTIAL] is not is_partial:
            self.refuse(f"{key}.{PARTIAL}", values[PARTIAL], str(is_partial).lower())
        parameters = parameters_of(target)
        section = here if isinstance(here, dict) else {}
        result: dict[str, Any] = {TARGET: name, **({PARTIAL: True} if is_partial else {})}
        for argument, value in values.items():
            if argument in (TARGET, PARTIAL):
                continue
            arguments = {*parameters, *section} - {"**"}
            if f"{key}.{argument}" in GONE and argument not in arguments:
                continue
            if not isinstance(argument, str) or argument[:1] == "_" or argument not in arguments:
                raise UserError(
                    f"{self.path}: {key} has no key {argument!r:.80}; give a checkpoint that train.py of this version "
                    "wrote"
                )
            argument_hint = parameters.get(argument, Parameter(Any, False)).hint
            result[argument] = self.value(f"{key}.{argument}", value, argument_hint, section.get(argument))
        return {**BEFORE.get(name, {}), **result}

    def value(self, key: str, value: Any, hint: Any, here: Any) -> Any:
        """Returns the value of one key, whose type is `hint`."""
        if is_withheld(value):
            return value
        if isinstance(value, dict) and (TARGET in value or (isinstance(here, dict) and TARGET in here)):
            return self.call(key, value, hint, here)
        plain = self.table(key, value)
        if not allows(hint, plain):
            self.refuse(key, value, words_of(hint))
        return plain

    def table(self, key: str, value: Any) -> Any:
        """Returns plain values of a key without a class, tuples as lists. Raises UserError for keys that mean more."""
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str) or name[:1] == "_":
                    raise UserError(
                        f"{self.path}: {key} has no key {name!r:.80}; give a checkpoint that train.py wrote"
                    )
            return {name: self.table(f"{key}.{name}", part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.table(f"{key}.{i}", part) for i, part in enumerate(value)]
        if value == MISSING or is_withheld(value):
            raise UserError(f"{self.path}: {key} has no value, or one that was a secret; give another checkpoint")
        return value

    def refuse(self, key: str, value: Any, expected: str) -> None:
        raise UserError(
            f"{self.path}: {key}={value!r:.80} is not allowed; expected {expected}; "
            "give a checkpoint that train.py wrote"
        )


def classes_at(hint: Any, here: Any) -> dict[str, tuple[Any, bool]]:
    """Returns what may be made at a place, by name: the class or function, and whether it is called later.

    Args:
        hint: the type of the argument, in our own code.
        here: the section as the config has it.
    """
    classes: dict[str, tuple[Any, bool]] = {}
    for member in members(hint):
        is_partial = get_origin(member) is CALLABLE
        made = get_args(member)[-1] if is_partial and get_args(member) else member
        classes |= {name: (cls, is_partial) for name, cls in classes_of(made).items()}
    if isinstance(here, dict) and isinstance(here.get(TARGET), str):
        classes[here[TARGET]] = (target_of("", here[TARGET]), bool(here.get(PARTIAL)))
    return classes


@cache
def classes_of(kind: Any) -> dict[str, Any]:
    """Returns the classes for an argument of this type, by name: those of its kind in torch and in this project."""
    import torch  # every entry point that gets here has it

    from src.training import adagrad, schedule

    if kind is torch.optim.Optimizer:
        optimizers = {cls for cls in vars(torch.optim).values() if is_class(cls, torch.optim.Optimizer)}
        names = {f"torch.optim.{cls.__name__}": cls for cls in optimizers - {torch.optim.Optimizer}}
        return names | named(*optimizers - {torch.optim.Optimizer}, adagrad.Adagrad)
    if kind is schedule.Schedule:
        schedules = [cls for cls in vars(schedule).values() if is_class(cls) and cls.__module__ == schedule.__name__]
        return named(*(cls for cls in schedules if "__call__" in vars(cls) and cls is not kind))
    return named(kind) if is_class(kind) and kind.__module__.startswith(f"{PACKAGE}.") else {}


def is_class(value: Any, base: type = object) -> bool:
    return inspect.isclass(value) and issubclass(value, base)


def named(*classes: Any) -> dict[str, Any]:
    return {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}
