"""Frames of plain and extended .xyz files, and their comments: charge, unit of length, periodic box, targets."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from src.datamodules.graphs.records import Record, plain_number
from src.errors import UserError

# key=value of a comment; a value with blanks is in quotes, braces or brackets.
QUOTED = r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'"
NESTED = r"\{[^{}]*\}|\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
AFTER = r"""(?:\s*(?=["'{\[])|\s+(?![^\s=]{1,200}\s*=)|)"""  # blanks after =, unless another key follows
PAIR = re.compile(rf"""([^\s=,;"'{{}}\[\]]{{1,200}})\s*={AFTER}({QUOTED}|{NESTED}|[^\s]+)""")
MOST_CHARGE = 100  # of a molecule
LENGTHS = {"angstrom": 1.0, "bohr": 0.529177210903, "nm": 10.0, "pm": 0.01}  # in angstrom, CODATA 2018
WORDS = {
    "angstrom": "angstrom", "angstroms": "angstrom", "ang": "angstrom", "a": "angstrom", "å": "angstrom",
    "bohr": "bohr", "bohrs": "bohr", "au": "bohr", "a.u.": "bohr", "a.u": "bohr", "a0": "bohr", "atomic": "bohr",
    "nm": "nm", "nanometer": "nm", "nanometers": "nm", "nanometre": "nm",
    "pm": "pm", "picometer": "pm", "picometers": "pm",
}  # fmt: skip
ENERGIES = {"ev", "mev", "hartree", "ha", "eh", "rydberg", "ry", "kcal/mol", "kj/mol", "kcal", "kj"}
UNIT_KEYS = {
    "unit", "units", "length_unit", "length_units", "distance_unit", "distance_units", "pos_unit", "pos_units",
    "position_unit", "position_units", "positions_unit", "positions_units", "coordinate_unit", "coordinates_unit",
    "coord_unit", "coord_units",
}  # fmt: skip
IN_WORDS = re.compile(r"\b(bohrs?|nanomet(?:er|re)s?|picomet(?:er|re)s?)\b(?!\s*\^|[/\d])", re.IGNORECASE)
TRUE, FALSE = {"t", "true", ".true.", "1"}, {"f", "false", ".false.", "0"}
NAME_COLUMNS = (
    "species", "element", "elements", "symbol", "symbols", "numbers", "number", "z", "atomic_number", "atomic_numbers",
)  # fmt: skip
PLACE_COLUMNS = "pos", "positions", "position", "coords", "coord", "coordinates", "xyz"


class Frame(NamedTuple):
    """One unparsed frame."""

    lines: list[str]  # of its atoms
    columns: tuple[int, int] = (0, 1)  # of the element and the first coordinate
    charge: int = 0
    scale: float = 1.0  # angstrom in a unit of length
    unit: str = "angstrom"
    box: Float[np.ndarray, "3 3"] | None = None  # lattice vectors in angstrom, zero where not periodic
    is_assumed: bool = True  # the charge: the file gives none


def frames(path: Path, text: str, charge: int, length_unit: str | None) -> Iterator[Record]:
    """Yields the frames of a file. Raises UserError that names the line of one that cannot be read."""
    lines = text.split("\n")
    start, frame = 0, 0
    while start < len(lines):
        if not lines[start].strip():
            start += 1
            continue
        frame += 1
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", lines[start]):
            raise UserError(f"{path} line {start + 1}: expected a number of atoms, found {lines[start]!r}")
        count = int(lines[start])
        if start + 2 + count > len(lines):
            raise UserError(f"{path} is truncated: frame {frame} (line {start + 1}) has fewer than {count} atoms")
        where = f"{path} line {start + 2}"
        comment = Comment(lines[start + 1], where)
        unit = length_unit or comment.length_unit()
        stated = comment.charge()
        content = Frame(
            lines[start + 2 : start + 2 + count],
            comment.columns(),
            charge if stated is None else stated,
            LENGTHS[unit],
            unit,
            comment.box(LENGTHS[unit]),
            stated is None,
        )
        yield Record(f"frame {frame}", "xyz", content, comment.values())
        start += 2 + count


class Comment:
    """The second line of a frame; every method raises UserError, with `where`, for what it cannot use."""

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.pairs: dict[str, str] = {}
        for key, value in PAIR.findall(text):
            value = value[1:-1] if value[0] in "\"'{[" and value[-1] in "\"'}]" else value.rstrip(",;")
            if self.pairs.setdefault(key, value) != value:
                raise UserError(
                    f"{where}: {key} stands there twice, as {self.pairs[key]!r} and {value!r}: leave one out"
                )
        self.words = PAIR.sub(" ", text)
        self._used: set[str] = set()

    def charge(self) -> int | None:
        """Returns the molecule's charge; None if there is none."""
        stated = {value for name in ("charge", "total_charge") if (value := self._take(name)) is not None}
        if not stated:
            return None
        charge = plain_number(next(iter(stated)))
        if len(stated) > 1 or charge is None or abs(charge) > MOST_CHARGE or charge % 1:
            limits = f"a whole number of {-MOST_CHARGE} to {MOST_CHARGE}"
            raise UserError(f"{self.where}: charge={' and '.join(sorted(stated))} is not allowed; expected {limits}")
        return round(charge)

    def length_unit(self) -> str:
        """Returns a key of LENGTHS: the unit of coordinates and box; angstrom if the comment names none."""
        advice = "give datamodule.source.length_unit=angstrom (or bohr, nm, pm), which all frames then have"
        units: set[str] = set()
        for key in [key for key in self.pairs if key.lower() in UNIT_KEYS]:
            value = self._take(key) or ""
            words = re.split(r"[\s,;]+", value.strip().lower())
            units |= (named := {WORDS[word] for word in words if word in WORDS})
            if not named and not set(words) <= ENERGIES:
                raise UserError(f"{self.where}: {key}={value} is no unit of length; {advice}")
        if len(units) > 1:
            raise UserError(f"{self.where} has the lengths in {' and in '.join(sorted(units))}; {advice}")
        if not units and (word := IN_WORDS.search(self.words)):
            raise UserError(f"{self.where} says {word[0]!r}, but not that coordinates are in it; {advice}")
        return next(iter(units), "angstrom")

    def box(self, scale: float) -> Float[np.ndarray, "3 3"] | None:
        """Returns the lattice vectors in angstrom, zero where not periodic; None without a periodic direction.

        Without `pbc` a frame that has a Lattice is periodic, as the format says.
        """
        lattice, flags = self._take("lattice"), self._take("pbc")
        is_periodic = [lattice is not None] * 3 if flags is None else self._flags(flags)
        if not any(is_periodic):
            return None
        words = re.split(r"[\s,\[\]]+", (lattice or "").strip("[] "))
        numbers = [plain_number(word) for word in words]
        if len(numbers) != 9 or None in numbers:
            reason = f"Lattice={lattice!r} is no box: expected 9 numbers"
            reason = reason if lattice is not None else f"pbc={flags!r} without a Lattice of 9 numbers"
            raise UserError(f'{self.where}: {reason}; write pbc="F F F" if the molecule is not periodic')
        box = np.array(numbers, np.float64).reshape(3, 3) * scale * np.array(is_periodic)[:, None]
        if not box[is_periodic].any(1).all():
            raise UserError(
                f'{self.where}: Lattice={lattice!r} has no length along a periodic direction; write pbc="F F F" if '
                "the molecule is not periodic"
            )
        return box

    def _flags(self, text: str) -> list[bool]:
        words = re.split(r"[\s,\[\]]+", text.strip("[] ").lower())
        words = words * 3 if len(words) == 1 else words
        if len(words) != 3 or not set(words) <= TRUE | FALSE:
            raise UserError(f'{self.where}: pbc={text!r} is not allowed; expected three of T and F, as "T T F"')
        return [word in TRUE for word in words]

    def columns(self) -> tuple[int, int]:
        """Returns the columns of element and position, from Properties=species:S:1:pos:R:3 for example."""
        properties = self._take("properties")
        if not properties:
            return 0, 1
        start, starts = 0, {}
        fields = properties.split(":")
        if len(fields) % 3 or not all(re.fullmatch("[0-9]{1,4}", width) for width in fields[2::3]):
            raise UserError(f"{self.where}: Properties={properties} is not name:type:width, over and over")
        for name, width in zip(fields[::3], map(int, fields[2::3]), strict=True):
            starts[name.lower(), width] = start
            start += width
        name = next((starts[name, 1] for name in NAME_COLUMNS if (name, 1) in starts), None)
        place = next((starts[name, 3] for name in PLACE_COLUMNS if (name, 3) in starts), None)
        if name is None or place is None:
            raise UserError(
                f"{self.where}: Properties={properties} has no column of elements or no 3 of coordinates; expected "
                "species:S:1 and pos:R:3"
            )
        return name, place

    def values(self) -> Mapping[str, str]:
        """Returns the pairs that no other method has used."""
        return {key: value for key, value in self.pairs.items() if key not in self._used}

    def _take(self, name: str) -> str | None:
        """Returns the value of a key in any case."""
        key = next((key for key in self.pairs if key.lower() == name.lower()), None)
        if key is None:
            return None
        self._used.add(key)
        return self.pairs[key]
