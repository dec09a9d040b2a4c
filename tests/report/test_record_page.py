"""docs/reference/record.md has the keys of a record, all of them and no others."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

from src.measure.phases import PHASES
from src.report.record import SCHEMA_VERSION, Record
from tests.support import ROOT

PAGE = (ROOT / "docs" / "reference" / "record.md").read_text(encoding="utf-8")


def keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Yields the keys of a record, those of nested objects with dots."""
    hints = get_type_hints(cls)
    for field in fields(cls):  # pyright: ignore[reportArgumentType]  # a dataclass
        options = get_args(hints[field.name]) or (hints[field.name],)
        nested = [option for option in options if is_dataclass(option) and isinstance(option, type)]
        if nested:
            yield from keys(nested[0], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_the_page_has_every_key_of_a_record_and_no_other() -> None:
    rows = list[str]()
    for cell in re.findall(r"^\| (`[^|]*`) \|", PAGE, flags=re.MULTILINE):
        for key in re.findall(r"`([\w.]+)`", cell):
            rows.append(rows[-1].rpartition(".")[0] + key if key.startswith(".") else key)
    assert len(rows) == len(set(rows))
    assert set(rows) == {"schema_version", *keys(Record)}


def test_the_page_has_the_version_and_the_phases() -> None:
    assert f"| `schema_version` | int | {SCHEMA_VERSION};" in PAGE
    (sentence,) = re.findall(r"^`phases_s` has the keys ([^.]*)\.", PAGE, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", sentence) == list(PHASES)
