"""Checks that what a file holds is plain: dicts, lists, tuples and scalars, as many and as deep as anything needs."""

from collections import OrderedDict
from types import NoneType
from typing import Any

from src.errors import UserError

SCALARS = (bool, int, float, str, NoneType)
LARGEST = 2**63
DEEPEST, MOST = 50, 10**6  # lists and dicts within each other, and values in all of them


def check_plain(content: Any, where: str, others: tuple[type, ...] = (), longest: int = 2000) -> None:
    """Raises UserError for anything that is not plain, a list that holds itself, or more values than MOST.

    Args:
        where: the file and the key of its content, for messages.
        others: types that are allowed beside the plain ones, such as tensors.
        longest: characters of a text; what is written of a run is searched for secrets, which takes long in long ones.
    """
    count, stack = 0, [(where, content, 0)]
    while stack:
        key, value, depth = stack.pop()
        count += 1
        if depth > DEEPEST or count > MOST:
            raise UserError(f"{key} nests too deep or holds too much; give a file that train.py wrote")
        if type(value) in (dict, OrderedDict):
            stack.extend((f"{key}.{name!s:.80}", part, depth + 1) for name, part in value.items())
            for name in value:
                if type(name) not in SCALARS:
                    raise UserError(f"{key} has a key that is no text but {type(name).__name__}; give another file")
        elif type(value) in (list, tuple):
            stack.extend((f"{key}.{i}", part, depth + 1) for i, part in enumerate(value))
        elif type(value) is str and len(value) > longest:
            raise UserError(f"{key} is a text of {len(value)} characters, {longest} are the most; give another file")
        elif type(value) is int and abs(value) >= LARGEST:
            raise UserError(f"{key} is a number of more than 63 bits, which train.py does not write; give another")
        elif type(value) not in SCALARS and not isinstance(value, others):
            raise UserError(f"{key} is of the type {type(value).__name__}, which train.py does not write; give another")
