"""What a type hint allows of plain values, as a config or a record has them, and its words for that."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from src.config.ranges import MAY_BE_EMPTY, MOST_NUMBER, MOST_WHOLE, Range

PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def is_number(value: Any) -> bool:
    """Returns whether this is a number that a run can use, and no truth value."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float) and abs(value) <= MOST_NUMBER  # not so for NaN


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def allows(hint: Any, value: Any) -> bool:
    """Returns whether a plain value of a config is of this type and in its range."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (None, NoneType):
        return value is None
    if hint is Any or isinstance(hint, TypeVar):
        return all(is_number(leaf) or not isinstance(leaf, float) for leaf in leaves(value))
    if origin in (Union, UnionType):
        return any(allows(member, value) for member in arguments)
    if origin is Annotated:
        base, *limits = arguments
        if MAY_BE_EMPTY in limits:
            return isinstance(value, str)
        return allows(base, value) and all(_is_within(limit, value) for limit in limits)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return is_number(value) and (hint is float or isinstance(value, int))
    if hint in (str, Path):
        return isinstance(value, str) and value != "" and "\0" not in value
    return _allows_collection(origin or hint, arguments, value)


def _allows_collection(kind: Any, arguments: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(kind, type) or kind.__module__ not in ("builtins", "collections.abc"):
        return False  # an object, which a config describes with _target_
    if issubclass(kind, Mapping):
        return isinstance(value, dict) and all(allows(arguments[1], element) for element in value.values())
    if issubclass(kind, Collection):
        if isinstance(value, list) and kind is tuple and Ellipsis not in arguments:
            return len(value) == len(arguments) and all(map(allows, arguments, value))
        return isinstance(value, list) and all(allows(arguments[0], element) for element in value)
    return False


def _is_within(limit: Any, value: Any) -> bool:
    if isinstance(limit, Range):
        return value in limit and (math.isfinite(limit.most) or isinstance(value, float) or value <= MOST_WHOLE)
    return allows(limit, value)  # Annotated[str, Literal["auto", "on"]]: OmegaConf knows no Literal


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def words_of(hint: Any) -> str:
    """Returns what a type allows, in words: "1 or more, or null"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        named = [member for member in arguments if not (member is int and float in arguments)]  # "a number" says it
        words = dict.fromkeys(words_of(member) for member in sorted(named, key=lambda member: member is NoneType))
        return ", or ".join(words)
    if origin is Annotated:
        if MAY_BE_EMPTY in arguments:
            return PLAIN[str]
        limits = [limit if isinstance(limit, Range) else words_of(limit) for limit in arguments[1:]]
        return " ".join([PLAIN[arguments[0]], *map(str, limits)] if arguments[0] in (int, float) else map(str, limits))
    if origin is Literal:
        *others, last = map(str, arguments)
        return f"{', '.join(others)} or {last}" if others else last
    if hint in (None, NoneType):
        return "null"
    if hint in PLAIN:
        return PLAIN[hint]
    kind = origin or hint
    if isinstance(kind, type) and kind.__module__ in ("builtins", "collections.abc"):
        if issubclass(kind, Mapping):
            return f"{{NAME: VALUE}}, each {words_of(arguments[1])}"
        if kind is tuple and Ellipsis not in arguments:
            return f"{len(arguments)} values in [], each {words_of(arguments[0])}"
        if issubclass(kind, Collection):
            return f"a list, each {words_of(arguments[0])}"
    return "a value that is finite" if hint is Any else "what --cfg job shows without this"
