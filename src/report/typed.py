"""Builds dataclasses from plain JSON values and checks the types; errors name the key."""

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from src.config.hints import allows, members, words_of

T = TypeVar("T")


def build(cls: type[T], data: dict[str, Any], where: str = "", optional: Collection[str] = ()) -> T:
    """Returns an instance of the dataclass `cls` with the values of `data`, nested dataclasses included.

    Every field is required except those in `optional`, nested ones as 'case.precision', of a list's items without
    their number. `where` is the prefix of the
    keys ('case.').
    Raises ValueError that names the first key that is unknown, missing or of the wrong type.
    """
    names = [f.name for f in fields(cls)]  # pyright: ignore[reportArgumentType]  # T is a dataclass
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean '{where}{near[0]}'?" if near else f"the keys are {', '.join(names)}"
            raise ValueError(f"unknown key '{where}{key}': {hint}")
    for name in names:
        if name not in data and re.sub(r"\[\d+\]", "", f"{where}{name}") not in optional:
            raise ValueError(f"missing key '{where}{name}'")
    hints = get_type_hints(cls)
    return cls(**{key: _value(hints[key], value, f"{where}{key}", optional) for key, value in data.items()})


def check_parts(value: Any, parts: Any, key: str) -> None:
    """Checks those keys of free-form JSON that are read, as far as they are there; null is none.

    Args:
        value: what stands under `key`.
        parts: its type, or the parts of an object by key.

    Raises ValueError that names the first key of the wrong type.
    """
    if value is None:
        return
    if not isinstance(parts, dict):
        _value(parts, value, key, ())
        return
    if not isinstance(value, dict):
        raise ValueError(f"key '{key}' is {value!r:.60}, expected an object")
    for name in parts.keys() & value.keys():
        check_parts(value[name], parts[name], f"{key}.{name}")


def _value(hint: Any, value: Any, key: str, optional: Collection[str]) -> Any:
    for option in members(hint):
        origin = get_origin(option) or option
        if is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return build(option, value, f"{key}.", optional)
        if origin is dict and isinstance(value, dict):
            return {name: _value(get_args(option)[1], item, f"{key}.{name}", optional) for name, item in value.items()}
        if origin in (list, Sequence) and isinstance(value, list):
            return [_value(get_args(option)[0], item, f"{key}[{i}]", optional) for i, item in enumerate(value)]
        if allows(option, value) or (option is str and value == ""):
            return value
    words = ["an object" if is_dataclass(option) else words_of(option) for option in members(hint)]
    expected = ", or ".join(words) if "an object" in words else words_of(hint)
    raise ValueError(f"key '{key}' is {value!r:.60}, expected {expected}")
