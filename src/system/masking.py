"""Keeps secrets out of what a run writes: records, logs, checkpoints, the files of a sweep and Hydra's own.

Masked are
- values under keys named like a secret (`api_key`, `hf_token`), and values that look like the keys of known services:
  they become '***';
- values from the environment (`${oc.env:NAME}`): they become the interpolation again, which names a variable and holds
  nothing. A checkpoint that is read again takes them from the environment again.

`watch` looks at a config before it is resolved; `masked` and `masked_text` then know its secrets.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

MASK = "***"
MARK = "REPRISE_VALUE_OF_THE_ENVIRONMENT"  # an identifier, so that resolvers pass it on
SHORTEST = 6  # characters of a value that is masked within other texts, where a shorter one may stand by chance

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
SECRET_WORDS = {
    "secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials", "apikey", "auth",
    "authorization", "bearer",
}  # fmt: skip
SECRET_PAIRS = {(kind, "key") for kind in ("api", "access", "account", "auth", "private", "secret", "signing")}
OF_A_TEXT = {"pad", "cls", "mask", "eos", "bos", "sep", "unk", "start", "end", "special", "per", "each", "next"}
HASHES = {"commit", "revision", "sha", "hash", "digest", "checksum"}

# A key of Weights & Biases, or a hash of git: as a folder of a path it is one of those.
HEX_40 = re.compile(r"(?<![\w/-])[0-9a-f]{40}(?![\w/-])")
SHAPES = re.compile(
    r"(?<![\w-])(?:"
    r"wandb_v\d+_\w{20,}|(?<!/)(?=[\w-]*\d)(?=[\w-]*[A-Z])(?=[\w-]*[a-z])[\w-]{86}(?![\w/-])|hf_\w{30,}|sk-[\w-]{20,}|gh[pousr]_\w{30,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{20,}|A(?:KIA|SIA)[0-9A-Z]{16}(?!\w)|AIza[\w-]{35}|xox[abeoprs]-[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
PASSWORD_OF_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
ASSIGNMENT = re.compile(r"([+~]{0,2}[\w./@-]+)=(.*)", re.DOTALL)
INLINE = re.compile(
    r"""([\w./@-]+)(['"]?\s*[:=]\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\$\{[^{}]*\}|[^\s,{}\[\]'"]+)"""
)
INTERPOLATION = re.compile(r"\$\{[^{},'\"]*\}")  # without a default, which would be a value


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
            return {key: self.masked(v, (*path, key), below or names_secret(key, v)) for key, v in value.items()}
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
        for value, instead in sorted(self.values.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(value, instead)
        if given := ASSIGNMENT.fullmatch(text):
            key, value = given.groups()
            if is_secret(key, value):
                return f"{key}={MASK}"
            is_hash = is_hash or names_hash(key)
        text = INLINE.sub(_without_value, text)
        text = PASSWORD_OF_URL.sub(rf"\1:{MASK}@", text)
        text = SHAPES.sub(MASK, text)
        return text if is_hash else HEX_40.sub(MASK, text)


_secrets = Secrets()


def watch(config: DictConfig) -> None:
    """Finds the secrets of this process's config, which must not be resolved yet; forgets those of an earlier one."""
    global _secrets
    _secrets = find(config)


def masked(value: Any, *path: str) -> Any:
    """Returns plain data of the watched config without its secrets; `path` leads to it from the root."""
    return _secrets.masked(value, path)


def masked_text(text: str) -> str:
    """Returns a text without the secrets of the watched config, and without what looks like one."""
    return _secrets.text(text)


def masked_overrides(texts: Sequence[str]) -> list[str]:
    """Returns overrides, or a command with some, without the secrets that their keys and their forms tell."""
    given = [found.groups() for text in texts if (found := ASSIGNMENT.fullmatch(text))]
    values = {value: MASK for key, value in given if len(value) >= SHORTEST and is_secret(key, value)}
    return [Secrets(values=values).text(text) for text in texts]


def mask_error(error: BaseException | None) -> None:
    """Takes secrets out of the messages of an error and of those that it followed from."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.args = tuple(masked_text(part) if isinstance(part, str) else part for part in error.args)
        if isinstance(error, OSError) and isinstance(error.filename, str):
            error.filename = masked_text(error.filename)
        error = error.__cause__ or error.__context__


def mask_process() -> None:
    """Takes secrets out of this process's arguments, which loggers save, and out of what is logged from now on."""
    sys.argv[1:] = map(masked_text, sys.argv[1:])
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, MaskingFilter) for each in handler.filters):
            handler.addFilter(MaskingFilter())


class MaskingFilter(logging.Filter):
    """Takes secrets out of log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = masked_text(record.getMessage()), ()
        return True


def names_secret(key: Any, value: Any = "") -> bool:
    """Returns whether a key is named like a secret; `num_tokens`, `pad_token` and a number under `token` are not."""
    for part in re.split(r"[./@]", str(key)):
        words = [word.lower() for word in WORD.findall(part)]
        if SECRET_WORDS & {*words} or SECRET_PAIRS & {*pairwise(words)}:
            return True
        if words[-1:] == ["token"] and not OF_A_TEXT & {*words} and isinstance(value, str):
            return True
    return False


def is_secret(key: str, value: str) -> bool:
    """Returns whether a text under a key is a secret: an interpolation only names one."""
    return names_secret(key, value) and value not in ("", "null", "None") and not INTERPOLATION.fullmatch(value)


def names_hash(key: Any) -> bool:
    """Returns whether a key is named like that of a hash, such as `revision`."""
    words = [word.lower() for word in WORD.findall(str(key)) if not word.isdigit()]
    return bool(words) and words[-1] in HASHES


def find(config: DictConfig | ListConfig) -> Secrets:
    """Returns the secrets of a config that is not resolved yet."""
    raw: Any = OmegaConf.to_container(config, resolve=False)
    literals = [value for value, below in leaves(raw) if below and not INTERPOLATION.fullmatch(value)]
    values = {value: MASK for value in literals if len(value) >= SHORTEST}
    if not any("oc.env" in value for value, _ in leaves(raw)):
        return Secrets(values=values)
    names, paths = from_environment(config)
    for name in names:
        if len(value := os.environ.get(name, "")) >= SHORTEST:
            values[value] = f"${{oc.env:{name}}}"
    return Secrets(paths, values)


def leaves(value: Any, below: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields all texts of plain data, and whether each stands below a key named like a secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, below or names_secret(key, item))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, below)
    elif isinstance(value, str):
        yield value, below


def from_environment(config: DictConfig | ListConfig) -> tuple[set[str], dict[tuple[Any, ...], str]]:
    """Returns the environment variables that a config names, and the interpolations that depend on them by their paths.

    Every interpolation is resolved once with a mark in the place of the environment's values.
    """
    names, paths = set[str](), dict[tuple[Any, ...], str]()

    def marked(name: str, default: Any = None) -> str:
        names.add(name)
        return MARK

    def walk(node: Any, path: tuple[Any, ...]) -> None:
        if node._is_none() or node._is_missing():
            return
        for key in [*node] if isinstance(node, DictConfig) else range(len(node)):
            child: Any = node._get_node(key)
            if child._is_interpolation():
                paths.update(tainted(node, key, (*path, key), str(child._value())))
            elif OmegaConf.is_config(child):
                walk(child, (*path, key))

    def tainted(node: Any, key: Any, path: tuple[Any, ...], text: str) -> dict[tuple[Any, ...], str]:
        try:
            value = node[key]
            plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except Exception:  # a number cannot be the mark, for one
            return {path: text}
        found = [below for below, leaf in leaf_paths(plain) if MARK in str(leaf)]
        return {(*path, *below): MASK if below else text for below in found}

    OmegaConf.register_new_resolver("oc.env", marked, replace=True)
    try:
        walk(config, ())
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
    return names, paths


def leaf_paths(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields all leaves of plain data with their paths."""
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from (((key, *below), leaf) for below, leaf in leaf_paths(item))
    else:
        yield (), value


def _without_value(found: re.Match[str]) -> str:
    key, between, value = found.groups()
    return f"{key}{between}{MASK}" if is_secret(key, value) else found.group()
