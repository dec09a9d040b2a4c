"""Texts as they were written: Hydra reads `output_dir=2024_11_1` as the number 2024111 before it knows the key's type.

Numbers keep their text while Hydra parses and sweeps; where they are set in a config, the type of the key decides.
`src/patches.py` has Hydra do so.
"""

import inspect
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from pathlib import PurePath
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, Node
from omegaconf._utils import split_key

from src.config.hints import members
from src.config.values import parameters_of, target_of
from src.errors import UserError

NUMBERS = (bool, int, float)


class WrittenInt(int):
    """A whole number that prints as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


class WrittenFloat(float):
    """A number that prints as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


def with_text(value: Any, text: str) -> Any:
    """Returns a parsed value; a number that would print otherwise than `text`, with its text."""
    if type(value) not in (int, float) or str(value) == text:
        return value
    written = WrittenInt(value) if type(value) is int else WrittenFloat(value)
    written.text = text
    return written


def value_for(config: DictConfig, override: Override) -> Any:
    """Returns an override's value for this config: a text where its key is one, else what Hydra read.

    Raises UserError for a truth value among texts of which Hydra has not kept how it was written.
    """
    key, value = override.key_or_group, override.value()
    if not has_numbers(value):
        return value
    hint, node = type_of(config, key)
    if isinstance(value, bool):
        return override.get_value_string().strip() if is_text(hint) else value
    return as_written(key, value, hint, content_of(node))


def has_numbers(value: Any) -> bool:
    """Returns whether a number or a truth value is in a parsed value."""
    if isinstance(value, dict | list):
        return any(map(has_numbers, [*value, *value.values()] if isinstance(value, dict) else value))
    return isinstance(value, NUMBERS)


def as_written(key: str, value: Any, hint: Any, before: Mapping[Any, Any]) -> Any:
    """Returns a parsed value with its texts as they were written, of a type, and with plain numbers.

    Args:
        before: what the config has there, into which Hydra merges a dictionary.
    """
    if isinstance(value, dict):
        merged = {**before, **value}
        return {
            plain(name): as_written(
                f"{key}.{name}", part, type_within(hint, merged, str(name)), content_of(before.get(name))
            )
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [as_written(f"{key}.{i}", element, type_of_element(hint, i), {}) for i, element in enumerate(value)]
    if isinstance(value, NUMBERS) and is_text(hint):
        if isinstance(value, bool):
            raise UserError(f"{key}={str(value).lower()} is a truth value and {key} a text; put it in quotes")
        return str(value)
    return plain(value)


def plain(value: Any) -> Any:
    """Returns a number without its text."""
    return int(value) if isinstance(value, WrittenInt) else float(value) if isinstance(value, WrittenFloat) else value


def content_of(node: Any) -> Mapping[Any, Any]:
    """Returns the nodes of a section by name; none of what is missing, null or an interpolation."""
    return node._content if isinstance(node, DictConfig) and isinstance(node._content, dict) else {}


def type_of(config: DictConfig, key: str) -> tuple[Any, Any]:
    """Returns the type of a key, and its node if there is one.

    The type is the schema's, or that of the class that the section's `_target_` names; else Any.

    The class, which takes long to import, is not looked at where the config has a number already.
    """
    node: Any = config
    hint: Any = Any
    for name in split_key(key):
        section = content_of(node)
        node = section.get(name)
        if node is not None and node._metadata.ref_type is not Any:
            hint = node._metadata.ref_type
        elif isinstance(node, Node) and isinstance(node._value(), NUMBERS):
            hint = Any
        else:
            hint = type_within(hint, section, name)
    return hint, node


def type_within(hint: Any, values: Mapping[Any, Any], name: str) -> Any:
    """Returns the type of a key of a section, which has this type and these values."""
    target = str(values["_target_"]) if "_target_" in values else None
    for member in [target_class(target)] if target else members(hint):
        if target or is_dataclass(member):
            return type_in_signature(member, name)
        if is_kind(member, Mapping):
            return get_args(member)[1]
    return Any


def target_class(name: str) -> Any:
    try:
        return target_of("", name)
    except UserError:  # the check of the whole config says so
        return None


def type_in_signature(function: Any, name: str) -> Any:
    if function is None:
        return Any
    parameter = parameters_of(function).get(name)
    if parameter is None or parameter.hint is not Any:
        return Any if parameter is None else parameter.hint
    annotation = inspect.signature(function).parameters[name].annotation  # of another package
    return Any if annotation is inspect.Parameter.empty else annotation


def type_of_element(hint: Any, index: int) -> Any:
    for member in members(hint):
        if is_kind(member, Collection) and not is_kind(member, Mapping) and (inner := get_args(member)):
            return inner[index] if ... not in inner and index < len(inner) else inner[0]
    return Any


def is_kind(hint: Any, kind: type) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, kind)


def is_text(hint: Any) -> bool:
    """Returns whether a type allows texts and no numbers."""
    kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in members(hint)} - {NoneType}
    return bool(kinds) and all(
        (isinstance(kind, type) and issubclass(kind, str | PurePath))
        or (get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind)))
        for kind in kinds
    )
