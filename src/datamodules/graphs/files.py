"""Your own molecules: an .xyz, .sdf or .mol file with coordinates, or SMILES in a .smiles or .smi file or a table."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from src.config.ranges import Count, Range, Seed, ShareBelow1
from src.datamodules import tables
from src.datamodules.download import sha256_of
from src.datamodules.graphs import sdf, xyz
from src.datamodules.graphs.data import GraphData
from src.datamodules.graphs.own_splits import OwnSplit, Way, column_of
from src.datamodules.graphs.parse import parse
from src.datamodules.graphs.prepare import Entries, load_own_graphs, prepare_graphs
from src.datamodules.graphs.records import Record, targets_of
from src.datamodules.graphs.xyz import MOST_CHARGE
from src.datamodules.prepared import Selection
from src.datamodules.tables import is_table, rows_of
from src.datamodules.text_files import lines_of
from src.errors import UserError, shortened
from src.measure.reading import Reading

Charge = Annotated[int, Range(-MOST_CHARGE, MOST_CHARGE)]
LengthUnit = Literal["angstrom", "bohr", "nm", "pm"]
FORM = 3  # of prepared folders of own files: another one prepares them anew


class Choices(NamedTuple):
    """How a file is read; see `load`."""

    charge: int = 0
    length_unit: LengthUnit | None = None
    keep_largest_fragment: bool = False


def load(
    data_dir: str | Path,
    *,
    file: str | Path,
    val_share: ShareBelow1 = 0.1,
    test_share: ShareBelow1 = 0.1,
    split: Way | None = None,
    split_column: str | None = None,
    charge: Charge = 0,
    length_unit: LengthUnit | None = None,
    keep_largest_fragment: bool = False,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
) -> GraphData:
    """Returns the molecules of `file`; prepares them in a subfolder of `data_dir` first if necessary.

    Every key that the file has plain numbers for is a target: a key=value of an .xyz comment, a property of an .sdf
    record, a column of a table.

    Args:
        data_dir: folder of the prepared arrays.
        file: .xyz (one or more frames; bonds come from the distances, periodic molecules are made whole), .sdf or .mol
            (with bonds; missing hydrogens are added), .smiles or .smi (one a line), or a table (with a column
            `smiles`). SMILES get the coordinates of RDKit's ETKDG with a fixed seed, relaxed with MMFF.
        val_share, test_share: shares of the molecules to hold out, drawn with `seed`.
        split, split_column: how they are held out; see OwnSplit.
        charge: of each molecule of an .xyz file that gives none as charge=...
        length_unit: of the coordinates of an .xyz file, whatever it says; if not given, what its comments say, or
            angstrom.
        keep_largest_fragment: of a SMILES with several, which is refused otherwise.
        limit: prepare a sample of that many molecules, drawn with `seed`.
        seed: of the sample and the split.
        skip_bad: leave out molecules that cannot be used, and list them in bad.txt.
        workers: processes that find bonds and coordinates; one for each core by default.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"datamodule.source.file={path} does not exist; give a file of molecules")
    if path.suffix.lower() not in SUFFIXES and not is_table(path):
        suffixes = ", ".join((*SUFFIXES, *tables.SUFFIXES))
        raise UserError(f"{path}: the suffix is none of {suffixes}; rename or convert the file")
    held_out = OwnSplit(split, split_column, val_share, test_share, seed)
    choices = Choices(charge, length_unit, keep_largest_fragment)
    inputs = {path.name: sha256_of(path), "form": FORM, "split_column": split_column, **choices._asdict()}
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:8]
    prepared = prepare_graphs(
        Path(data_dir) / f"{path.stem}_{key}",
        inputs,
        lambda: entries_of(path, choices, split_column),
        parse,
        Selection(limit, seed, skip_bad),
        workers,
    )
    return load_own_graphs(prepared, held_out)


def entries_of(path: Path, choices: Choices = Choices(), split_column: str | None = None) -> Entries:  # noqa: B008
    """Returns the unparsed molecules of a file. Raises UserError that names a line that cannot be read."""
    reading = Reading(path.name, "molecules")
    if is_table(path):
        records = list(_table(path, choices.keep_largest_fragment, reading))
    else:
        records = list(_records(path, "\n".join(lines_of(path)), choices))
    targets = targets_of(records)
    return Entries(
        contents=[(record.format, record.content) for record in records],
        names=[" ".join(f"{path.name} {record.where}".split()) for record in records],
        targets=targets.values,
        units=targets.units,
        notes=[*reading.notes, *targets.notes],
        column=column_of([record.values for record in records], split_column, path.name),
    )


def _records(path: Path, text: str, choices: Choices) -> Iterator[Record]:
    match path.suffix.lower():
        case ".xyz" | ".extxyz":
            return xyz.frames(path, text, choices.charge, choices.length_unit)
        case ".sdf" | ".mol":
            return sdf.records(path, text)
        case _:
            return _smiles(text, choices.keep_largest_fragment)


def _smiles(text: str, keeps_largest: bool) -> Iterator[Record]:
    """One SMILES a line; text after a blank is ignored, and so are empty lines."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            smiles = line.split()[0]
            yield Record(f"line {number} ({shortened(smiles, 80)})", "smiles", (smiles, keeps_largest), {})


def _table(path: Path, keeps_largest: bool, reading: Reading) -> Iterator[Record]:
    """Rows of a table whose header has a column `smiles`, in any case; what its reader decided goes to `reading`."""
    for line, row in rows_of(path, ("smiles",), reading=reading, ignore_case=True, key=None):
        smiles = (row.pop("smiles") or "").strip()
        values = {name.strip(): value or "" for name, value in row.items()}
        yield Record(f"line {line} ({shortened(smiles, 80)})", "smiles", (smiles, keeps_largest), values)


SUFFIXES = ".xyz", ".extxyz", ".sdf", ".mol", ".smiles", ".smi"
