"""The secrets of a config, found before it is resolved: values under keys named so, and those of the environment."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.resolvers import oc

from src.config.versions import register_resolver
from src.system.masking import MASK, SHORTEST, Secrets, is_told, know, leaves, told

MARK = "REPRISE_VALUE_OF_THE_ENVIRONMENT"  # an identifier, so that resolvers pass it on


def watch(config: DictConfig) -> None:
    """Finds the secrets of this process's config, which must not be resolved yet; forgets those of an earlier one."""
    know(find(config))


def find(config: DictConfig | ListConfig) -> Secrets:
    """Returns the secrets of a config that is not resolved yet."""
    raw: Any = OmegaConf.to_container(config, resolve=False)
    texts = [*leaves(raw)]
    literals = [value for value, below in texts if below and is_told(value)]
    values = dict.fromkeys([*literals, *told(value for value, below in texts if not below)], MASK)
    if not any("oc.env" in value for value, _ in texts):
        return Secrets(values=values)
    names, paths = from_environment(config)
    for name in names:
        if len(value := os.environ.get(name, "")) >= SHORTEST:
            values[value] = f"${{oc.env:{name}}}"
    return Secrets(paths, values)


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
        places = [below for below, leaf in leaf_paths(plain) if MARK in str(leaf)]
        return {(*path, *below): MASK if below else text for below in places}

    register_resolver("oc.env", marked)
    try:
        walk(config, ())
    finally:
        register_resolver("oc.env", oc.env)
    return names, paths


def leaf_paths(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields all leaves of plain data with their paths."""
    if isinstance(value, Mapping | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from (((key, *below), leaf) for below, leaf in leaf_paths(item))
    else:
        yield (), value
