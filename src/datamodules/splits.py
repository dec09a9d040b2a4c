"""Held-out rows of a data set: read from a file, or drawn at random."""

from pathlib import Path

import numpy as np
from jaxtyping import Int

from src.errors import UserError
from src.system.reading import read_json


def read_split(path: Path, total: int) -> Int[np.ndarray, " held_out"]:
    """Returns the held-out rows, counted from 0, of a JSON file: a list of row numbers counted from 1.

    Raises UserError if the file is not a list of distinct row numbers between 1 and `total`.
    """
    numbers = read_json(path, "give a JSON list of row numbers")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise UserError(f"the split file {path} is not a JSON list of whole numbers: give one, counted from 1")
    wrong = next((number for number in numbers if not 1 <= number <= total), None)
    if wrong is not None:
        raise UserError(f"the split file {path} has row {wrong}: give rows from 1 to {total}")
    if len(set(numbers)) < len(numbers):
        raise UserError(f"the split file {path} has a row twice: give each row once")
    return np.array(sorted(numbers), np.int64) - 1


def seeded_split(total: int, share: float, seed: int) -> Int[np.ndarray, " held_out"]:
    """Returns a random `share` of the rows 0 to total - 1, drawn with `seed`, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(total)[: round(total * share)])
