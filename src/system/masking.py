"""Keeps secrets out of what a run writes: records, logs, checkpoints, the files of a sweep and Hydra's own.

Masked are
- values under keys named like a secret (`api_key`, `hf_token`), in environment variables named so, in addresses and
  headers, and what looks like the key of a service (`src.system.secret_forms`): they become '***', there and wherever
  else the same value stands, in any quoting;
- values from the environment (`${oc.env:NAME}`): they become the interpolation again, which names a variable and holds
  nothing. A checkpoint that is read again takes them from the environment again.

`src.config.secrets.watch` looks at a config before it is resolved; `masked` and `masked_text` then know its secrets.
"""

import html
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

from src.system.secret_forms import ASSIGNMENT, INTERPOLATION, is_secret, secret_spans
from src.system.secret_names import NOTHING, names_hash, names_secret

MASK = "***"
SHORTEST = 6  # characters of a value that is masked within other texts, where a shorter one may stand by chance
SHORTEST_OF_ENVIRONMENT = 8  # likewise, where nobody named the variable for this run
SHORTEST_LINE = 16  # characters of a line of a longer secret
ARGUMENTS = tuple(sys.argv[1:])  # before `mask_process` changes them


@dataclass(frozen=True)
class Secrets:
    """What is secret in one config.

    Attributes:
        paths: what is written in the place of each value from the environment, by its keys from the root.
        values: what is written in the place of each other text, wherever it occurs.
    """

    paths: Mapping[tuple[Any, ...], str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)

    def masked(self, value: Any, path: tuple[Any, ...] = (), below: bool = False) -> Any:
        """Returns plain data without its secrets; `path` leads to it from the root of the config.

        Args:
            below: whether it stands below a key named like a secret.
        """
        if isinstance(value, Mapping):
            return {
                self.text(key) if isinstance(key, str) else key: self.masked(
                    item, (*path, key), below or names_secret(key, item)
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.masked(item, (*path, i), below) for i, item in enumerate(value)]
        if path in self.paths:
            value = self._interpolation(value, self.paths[path])
        if value is None or isinstance(value, bool):
            return value
        if below:
            return value if INTERPOLATION.fullmatch(str(value)) else MASK
        return self.text(value, is_hash=bool(path) and names_hash(path[-1])) if isinstance(value, str) else value

    def _interpolation(self, value: Any, raw: str) -> str:
        """Returns an interpolation that gives the value: one of the environment alone rather than of another key."""
        alone = self.text(value) if isinstance(value, str) and "oc.env" not in raw else value
        return raw if alone == value else alone

    def text(self, text: str, is_hash: bool = False) -> str:
        """Returns a text, or an override, without the secrets in it; a hash may have 40 hexadecimal digits."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: self._written[match[0]], text)
        parts, at = list[str](), 0
        for begin, end in secret_spans(text, is_hash):
            parts += [text[at:begin], MASK]
            at = end
        return "".join([*parts, text[at:]])

    @cached_property
    def _written(self) -> dict[str, str]:
        """What stands for each value, by all ways to write the value."""
        return {written: instead for value, instead in self.values.items() for written in writings(value)}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        longest_first = sorted(self._written, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


_secrets = Secrets()


def watch_process() -> None:
    """Finds the secrets of this process's environment and arguments, before there is a config."""
    global _secrets
    _secrets = Secrets(values=of_the_process())


def know(secrets: Secrets) -> None:
    """Takes the secrets of this process's config beside those of the process; forgets those of an earlier one."""
    global _secrets
    _secrets = Secrets(secrets.paths, {**of_the_process(), **secrets.values})


def masked(value: Any, *path: str) -> Any:
    """Returns plain data of the watched config without its secrets; `path` leads to it from the root."""
    return _secrets.masked(value, path)


def masked_text(text: str) -> str:
    """Returns a text without the secrets of the watched config, and without what looks like one."""
    return _secrets.text(text)


def masked_overrides(texts: Sequence[str]) -> list[str]:
    """Returns overrides, or a command with some, without the secrets of the config and those that they tell."""
    values = dict.fromkeys(told(texts), MASK)
    return [Secrets(values={**values, **_secrets.values}).text(text) for text in texts]


def mask_error(error: BaseException | None) -> None:
    """Takes secrets out of the messages of an error and of those that it followed from."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(masked_text(part) if isinstance(part, str) else part for part in error.args)
        if isinstance(error, OSError) and isinstance(error.filename, str):
            error.filename = masked_text(error.filename)
        if notes := getattr(error, "__notes__", None):
            error.__notes__ = [masked_text(str(note)) for note in notes]
        error = error.__cause__ or error.__context__


def mask_process() -> None:
    """Takes secrets out of this process's arguments, which loggers save, and out of what is printed and logged."""
    sys.argv[1:] = map(masked_text, sys.argv[1:])
    for handler in logging.getLogger().handlers:
        if not any(isinstance(log_filter, MaskingFilter) for log_filter in handler.filters):
            handler.addFilter(MaskingFilter())
    mask_streams()


def mask_streams() -> None:
    """Has what is printed masked before others see it, who may keep it: again where one has put itself in between."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream.write, "masks", False):
            stream.write = _masking(stream.write)  # type: ignore[method-assign]


def _masking(write: Callable[[str], int]) -> Callable[[str], int]:
    def masked_write(text: str) -> int:
        write(masked_text(text) if len(text) >= SHORTEST else text)
        return len(text)

    masked_write.masks = True  # type: ignore[attr-defined]
    return masked_write


class MaskingFilter(logging.Filter):
    """Takes secrets out of log records and the tracebacks with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked_text(record.getMessage()), ()
        if record.exc_info:
            record.exc_text = masked_text(record.exc_text or logging.Formatter().formatException(record.exc_info))
        return True


def of_the_process() -> dict[str, str]:
    """Returns what is written for the secrets of this process's environment and arguments."""
    every = [(name, value) for name, value in os.environ.items() if len(value) >= SHORTEST_OF_ENVIRONMENT]
    named = [value for name, value in every if is_secret(name, value) and not value.startswith(("/", "./", "~/"))]
    addresses = told(value for _, value in every if "://" in value and "@" in value)
    return dict.fromkeys([*named, *addresses, *told(ARGUMENTS)], MASK)


def told(texts: Iterable[str]) -> Iterator[str]:
    """Yields the values that texts, such as overrides, show to be secrets; not what a bracket encloses."""
    for text in texts:
        assignment = ASSIGNMENT.fullmatch(text)
        for begin, end in secret_spans(text, is_hash=True):
            value = unquoted(text[begin:end].strip())
            if is_told(value) and (assignment is not None or value[0] not in "[{(|\n"):
                yield value


def is_told(value: str) -> bool:
    """Returns whether a secret is masked in other texts too: not a short one, and no name of a variable."""
    return len(value) >= SHORTEST and value not in NOTHING and not INTERPOLATION.fullmatch(value)


def unquoted(value: str) -> str:
    """Returns a value without the quotes around it, as Hydra reads it."""
    marks = re.fullmatch(r"(\\*)(['\"])(.*)\1\2", value, re.DOTALL)
    return re.sub(r"\\(['\"\\])", r"\1", marks[3]) if marks else value


def writings(value: str) -> set[str]:
    """Returns a value as files and messages write it: plain, quoted, escaped, in addresses; and its long lines."""
    slashes = value.replace("\\", "\\\\")
    ways: list[Callable[[str], str]] = [quote, quote_plus, lambda text: quote(text, safe=""), html.escape]
    escapes = [json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]]
    escapes += [ascii(value)[1:-1], slashes, slashes.replace("'", "\\'"), slashes.replace('"', '\\"')]
    escapes += [value.replace("'", "''"), value.replace("'", "'\"'\"'")]  # YAML and shells
    escapes += [re.sub(r"(?<=\\[xu])[0-9a-f]+", lambda match: match[0].upper(), text) for text in escapes[:4]]
    addresses = [way(value) for way in ways]
    small = [re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), text) for text in addresses]
    lines = [line.strip() for line in value.splitlines() if len(line.strip()) >= SHORTEST_LINE and "\n" in value]
    return {value, *escapes, *addresses, *small, *(line for line in lines if not line.startswith("-----"))}


def leaves(value: Any, below: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields all texts of plain data, and whether each stands below a key named like a secret, where numbers count."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, below or names_secret(key, item))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, below)
    elif isinstance(value, str):
        yield value, below
    elif below and isinstance(value, int) and not isinstance(value, bool):
        yield str(value), below
