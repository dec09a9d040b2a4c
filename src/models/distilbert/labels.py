"""The labels that a weight folder names, and which of its outputs is which label of the data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.errors import UserError

GENERIC = "LABEL_"  # with a number: Hugging Face's names for labels that nobody named
DEFAULT = 2  # labels of a config.json that says nothing of them


def labels_in(config: Mapping[str, Any], path: Path) -> list[str]:
    """Returns the names of the outputs in a config.json, LABEL_0 and so on where it has none.

    Raises UserError for names that are double, not numbered from 0, or others in `label2id`.
    """
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels", config.get("_num_labels", DEFAULT))
        if type(count) is not int or not 1 <= count <= 10**6:
            raise UserError(f"{path}: num_labels is {count!r:.80}; expected a number of 1 or more")
        return [f"{GENERIC}{number}" for number in range(count)]
    keys = sorted(map(str, named), key=lambda key: (len(key), key)) if isinstance(named, dict) else []
    if not keys or keys != [str(number) for number in range(len(keys))]:
        raise UserError(f"{path}: id2label is not numbered from 0: correct it")
    names = [str(named[key]) for key in keys]
    if len({*names}) < len(names):
        raise UserError(f"{path}: id2label has a name twice ({', '.join(names[:10])}): correct it")
    other = config.get("label2id")
    if isinstance(other, dict):
        for number, name in enumerate(names):
            if str(other.get(name, number)) != str(number):
                raise UserError(
                    f"{path}: {name} is label {number} in id2label, but {other[name]} in label2id: correct it"
                )
    return names


def is_generic(names: Sequence[str]) -> bool:
    """Returns whether the labels have numbers alone."""
    return list(names) == [f"{GENERIC}{number}" for number in range(len(names))]


def order_of(names: Sequence[str], data: Sequence[str], numbered: bool, source: str) -> list[int]:
    """Returns the output of each label of the data, then those of labels that the data lacks.

    Names are the same in another case. Outputs without names fit labels that are numbers.

    Args:
        names: of the outputs.
        data: labels of the data, by number.
        numbered: whether the data's labels are numbers, whatever their names.
        source: the weights, for messages.

    Raises UserError, with both lists, for a label that the weights do not have.
    """
    numbers = [str(number) for number in range(len(names))]
    if is_generic(names) and len(data) == len(names) and (numbered or list(data) == numbers):
        return list(range(len(names)))
    place = {name: number for number, name in enumerate(names)}
    folded: dict[str, int | None] = {}
    for number, name in enumerate(names):
        folded[_folded(name)] = None if _folded(name) in folded else number
    order = [place.get(label, folded.get(_folded(label))) for label in data]
    if None in order or len({*order}) < len(order):
        advice = "name them as id2label in its config.json" if is_generic(names) else "correct the names"
        raise UserError(
            f"the labels of {source} are {_listed(names)}, those of the data {_listed(data)}: {advice}, or train a new "
            "head with model.task.new_head=true"
        )
    outputs = [number for number in order if number is not None]
    return outputs + [number for number in range(len(names)) if number not in outputs]


def _folded(name: str) -> str:
    return name.strip().casefold()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
