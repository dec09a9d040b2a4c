"""Reads JSON that anyone may have written: no number is beyond use, and every text can be printed."""

import json
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.printable import printable
from src.system.reading import MOST_JSON, read_text

LARGEST = 1e60  # no figure is near it, and its square and its ratio to the least one are still finite


def read_json(file: Path) -> Any:
    """Returns the value in a file. Raises UserError where it cannot be read, or is no JSON that a run has written."""
    text = read_text(file, "give a run folder with a result.json, or a record file", MOST_JSON)
    try:
        return _safe(json.loads(text, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: line {error.lineno} is not JSON ({error.msg}): the file is cut or altered") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: is not JSON ({error}): the file is cut or altered") from error


def within_use(value: float) -> bool:
    """Returns whether a number is finite, and neither too large nor too close to zero to be reckoned with."""
    return value == 0 or 1 / LARGEST <= abs(value) <= LARGEST


def _safe(value: Any) -> Any:
    """Returns a JSON value whose texts can be printed. Raises ValueError for a number that no run has written."""
    if isinstance(value, dict):
        return {printable(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{str(value)[:20]}... is too large")
    if isinstance(value, float) and not within_use(value):
        raise ValueError(f"{value} is too {'large' if abs(value) > 1 else 'small'}")
    return printable(value) if isinstance(value, str) else value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
