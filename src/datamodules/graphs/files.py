"""Your own molecules: an .xyz, .sdf or .mol file with coordinates, or SMILES in a .smiles or .smi file or a table."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from src.config.ranges import Count, Range, Seed, ShareBelow1
from src.datamodules.download import sha256_of
from src.datamodules.graphs.data import GraphData
from src.datamodules.graphs.parse import parse
from src.datamodules.graphs.prepare import Entries, Splits, load_graphs, prepare_graphs
from src.datamodules.prepared import Selection
from src.datamodules.tables import SUFFIXES, is_table, rows_of
from src.datamodules.text_files import lines_of
from src.errors import UserError, shortened

PAIR = re.compile(r"""(?<![\w.-])([\w.-]+)=("[^"]*"|'[^']*'|\S+)""")  # of an .xyz comment
MOST_CHARGE = 100  # of a molecule
MOST = 1e30  # of a target: squares of larger ones have no mean
Charge = Annotated[int, Range(-MOST_CHARGE, MOST_CHARGE)]


class Record(NamedTuple):
    """One unparsed molecule of a file."""

    where: str  # in the file: its frame, record or line
    format: str  # a key of src.datamodules.graphs.parse.FORMATS
    content: Any
    values: Mapping[str, float]  # numbers of this molecule in the file


def load(
    data_dir: str | Path,
    *,
    file: str | Path,
    val_share: ShareBelow1 = 0.1,
    test_share: ShareBelow1 = 0.1,
    charge: Charge = 0,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
) -> GraphData:
    """Returns the molecules of `file`; prepares them in a subfolder of `data_dir` first if necessary.

    Every number that the file has for its molecules is a target: a key=value of an .xyz comment, a property of an .sdf
    record, a column of a table.

    Args:
        data_dir: folder of the prepared arrays.
        file: .xyz (one or more frames; bonds come from the distances), .sdf or .mol (with bonds; missing hydrogens are
            added), .smiles or .smi (one a line), or a table (with a column `smiles`). SMILES get the coordinates of
            RDKit's ETKDG with a fixed seed, relaxed with MMFF.
        val_share, test_share: shares of the molecules to hold out, drawn with `seed`.
        charge: of each molecule of an .xyz file that gives none as charge=...
        limit: prepare a sample of that many molecules, drawn with `seed`.
        seed: of the sample and the split.
        skip_bad: leave out molecules that cannot be used, and list them in bad.txt.
        workers: processes that find bonds and coordinates; one for each core by default.
    """
    path = Path(file)
    if not path.is_file():
        raise UserError(f"datamodule.source.file={path} does not exist; give a file of molecules")
    if path.suffix.lower() not in READERS and not is_table(path):
        suffixes = ", ".join((*READERS, *SUFFIXES))
        raise UserError(f"{path}: the suffix is none of {suffixes}; rename or convert the file")
    if val_share + test_share >= 1:
        raise UserError(
            f"val_share={val_share} and test_share={test_share}: give shares of 0 or more with a sum below 1"
        )
    inputs = {path.name: sha256_of(path), "charge": charge, "elements": "any"}
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:8]
    prepared = prepare_graphs(
        Path(data_dir) / f"{path.stem}_{key}",
        inputs,
        lambda: entries_of(path, charge),
        parse,
        Selection(limit, seed, skip_bad),
        workers,
    )
    return load_graphs(prepared, lambda total: shared_split(total, val_share, test_share, seed))


def shared_split(total: int, val_share: float, test_share: float, seed: int) -> Splits:
    """Rows of train, val and test, drawn with `seed`."""
    order = np.random.default_rng(seed).permutation(total)
    val, test = round(total * val_share), round(total * test_share)
    return {"train": order[val + test :], "val": order[:val], "test": order[val : val + test]}


def entries_of(path: Path, charge: int) -> Entries:
    """Returns the unparsed molecules of a file. Raises UserError that names a line that cannot be read."""
    if is_table(path):
        records = list(_table(path))
    else:
        records = list(READERS[path.suffix.lower()](path, "\n".join(lines_of(path)), charge))
    keys = list(dict.fromkeys(key for record in records for key in record.values))
    targets = [[record.values.get(key, math.nan) for key in keys] for record in records]
    return Entries(
        contents=[(record.format, record.content) for record in records],
        names=[" ".join(f"{path.name} {record.where}".split()) for record in records],
        targets=np.array(targets, np.float64).reshape(len(records), len(keys)),
        units=dict.fromkeys(keys, ""),
    )


def _xyz(path: Path, text: str, charge: int) -> Iterator[Record]:
    """Frames of a plain or extended .xyz file."""
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
        comment, atoms = lines[start + 1], lines[start + 2 : start + 2 + count]
        pairs = {key: value.strip("\"'") for key, value in PAIR.findall(comment)}
        frame_charge = _number(stated := pairs.pop("charge", charge))
        if frame_charge is None or abs(frame_charge) > MOST_CHARGE or frame_charge % 1:
            limits = f"a whole number of {-MOST_CHARGE} to {MOST_CHARGE}"
            raise UserError(f"{path} line {start + 2}: charge={stated} is not allowed; expected {limits}")
        content = (atoms, pairs.pop("Properties", ""), round(frame_charge))
        yield Record(f"frame {frame}", "xyz", content, _numbers(pairs.items()))
        start += 2 + count


def _sdf(path: Path, text: str, charge: int) -> Iterator[Record]:
    """Records of an .sdf file; the end mark of the last one may be missing."""
    blocks = re.split(r"^\$\$\$\$.*\n?", text, flags=re.MULTILINE)
    for number, block in enumerate(blocks, 1):
        if not block.strip():
            continue
        if "M  END" not in block:
            raise UserError(f"{path} is truncated: record {number} has no line 'M  END'")
        title = block.split("\n", 1)[0].strip()
        properties = re.findall(r"^>.*?<([^>\n]+)>.*\n(.*)$", block, flags=re.MULTILINE)
        yield Record(f"record {number}" + f" ({title})" * bool(title), "sdf", block, _numbers(properties))


def _smiles(path: Path, text: str, charge: int) -> Iterator[Record]:
    """One SMILES a line; text after a blank is ignored, and so are empty lines."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            smiles = line.split()[0]
            yield Record(f"line {number} ({shortened(smiles, 80)})", "smiles", smiles, {})


def _table(path: Path) -> Iterator[Record]:
    """Rows of a table whose header has a column `smiles`, in any case."""
    for line, row in rows_of(path, ("smiles",), ignore_case=True, key=None):
        smiles = (row.pop("smiles") or "").strip()
        values = _numbers((name.strip(), value) for name, value in row.items())
        yield Record(f"line {line} ({shortened(smiles, 80)})", "smiles", smiles, values)


def _numbers(pairs: Iterable[tuple[str, Any]]) -> dict[str, float]:
    return {key: number for key, value in pairs if (number := _number(value)) is not None}


def _number(text: Any) -> float | None:
    """Returns a number, None for anything else: text, NaN and what is too large to compute with are no values."""
    try:
        number = float(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= MOST else None


Reader = Callable[[Path, str, int], Iterator[Record]]
READERS: dict[str, Reader] = {
    ".xyz": _xyz, ".extxyz": _xyz, ".sdf": _sdf, ".mol": _sdf, ".smiles": _smiles, ".smi": _smiles,
}  # fmt: skip
