"""Molecules as arrays: encoded once from SMILES, kept in a prepared folder, and split into training and validation."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rdkit
from jaxtyping import Bool, Int, UInt8

from src.datamodules import prepared
from src.datamodules.download import sha256_of
from src.datamodules.prepared import LEAVE_OUT, Selection, reading, verified_meta, write_lines
from src.errors import UserError, shortened
from src.measure.reading import Reading
from src.molecules.encode import EncodingError, encode_all
from src.molecules.vocabulary import Vocabulary
from src.system.reading import read_npy, read_text

LAYOUT = 2
ARRAYS = ("nodes.npy", "edges.npy", "rows.npy")
COUNTED = 50_000  # molecules whose bonds are counted
RARE = 1e-3  # share of an element's atoms
TEXTS = ("smiles.txt", "published.txt", "canonical.txt")


class Row(NamedTuple):
    """One molecule of the published order, with its file and line number."""

    smiles: str
    file: Path
    line: int


@dataclass(frozen=True)
class MolecularData:
    """Prepared molecules and their split; `nodes` and `edges` are memory-mapped.

    `smiles` is as in the raw file; `published` and `canonical` are as in `src.molecules.encode.Encoded`. The indices
    are rows of these arrays and lists, ascending.
    """

    vocabulary: Vocabulary
    nodes: UInt8[np.ndarray, "molecules max_atoms"]
    edges: UInt8[np.ndarray, "molecules max_atoms max_atoms"]
    smiles: list[str]
    published: list[str]
    canonical: list[str]
    train_index: Int[np.ndarray, " train"]
    valid_index: Int[np.ndarray, " valid"]
    folder: Path
    reading: Reading | None = None  # of what was read and dropped when it was prepared

    @cached_property
    def train_published(self) -> frozenset[str]:
        """The training molecules as the published code writes them."""
        return frozenset(self.published[i] for i in self.train_index)

    @cached_property
    def train_canonical(self) -> frozenset[str]:
        """The training molecules in canonical SMILES."""
        return frozenset(self.canonical[i] for i in self.train_index) - {""}

    def most_bonds(self) -> Int[np.ndarray, " classes"]:
        """Returns the most bonds, by their orders, of an atom of each class in the first training molecules.

        More that only one in a thousand of the class has do not count. Class 0, no atom, has none.
        """
        rows = self.train_index[:COUNTED]
        orders = self.edges[rows].sum(2, dtype=np.uint8)
        counts = np.zeros((self.vocabulary.num_classes, 256), int)
        np.add.at(counts, (self.nodes[rows], orders), 1)
        at_least = counts[:, ::-1].cumsum(1)[:, ::-1]
        return (at_least > RARE * at_least[:, :1]).sum(1) - at_least[:, 0].astype(bool)


def prepare(
    files: list[Path],
    read: Callable[[], list[Row]],
    vocabulary: Vocabulary,
    folder: Path,
    selection: Selection,
    workers: int | None = None,
    kind: str = "",
) -> Path:
    """Encodes the selected molecules into a subfolder of `folder` unless it exists; returns the subfolder.

    The subfolder's name ends in `kind`. Raises UserError for a molecule that cannot be encoded (with `skip_bad`,
    bad.txt lists them instead), and for a subfolder that was prepared from other files or settings.
    """
    plain = asdict(vocabulary) | {"atomic_numbers": list(vocabulary.atomic_numbers)}
    origin = {
        "layout": LAYOUT,
        "inputs": {path.name: sha256_of(path) for path in files},
        "vocabulary": plain,
        "selection": asdict(selection),
    }

    def write(part: Path) -> dict[str, Any]:
        rows = read()
        total = len(rows)
        if not rows:
            raise UserError(f"{' and '.join(map(str, files))} has no molecule: check its contents")
        chosen = selection.rows(total)
        rows = [rows[i] for i in chosen]
        return _write(part, rows, chosen, vocabulary, selection.skip_bad, workers) | {"total": total}

    return prepared.prepare(folder / f"prepared_{selection.name}{kind}", origin, write)


def _write(
    part: Path,
    rows: list[Row],
    chosen: Int[np.ndarray, " molecules"],
    vocabulary: Vocabulary,
    skip_bad: bool,
    workers: int | None,
) -> dict[str, Any]:
    good = np.ones(len(rows), bool)
    bad: list[str] = []
    name = " and ".join(dict.fromkeys(row.file.name for row in rows))
    told = Reading(name, "molecules", read=len(rows))

    def on_bad(position: int, error: EncodingError) -> None:
        row, file, line = rows[position]
        smiles = shortened(row, 80)
        problem = f"{file} line {line}: {smiles!r} {error}"
        if not skip_bad:
            raise UserError(f"{problem}; correct the file, or {LEAVE_OUT}")
        good[position] = False
        bad.append(problem)
        told.drop(error.reason, f"line {line}: {smiles!r} {error}")

    encoded = encode_all([row.smiles for row in rows], vocabulary, on_bad=on_bad, workers=workers, name=name)
    if not good.any():
        raise UserError(f"no molecule of {rows[0].file} can be encoded: {bad[0]}")
    for name, array in zip(ARRAYS, (encoded.nodes, encoded.edges, chosen[good]), strict=True):
        np.save(part / name, array)
    smiles = [row.smiles for row, kept in zip(rows, good, strict=True) if kept]
    for name, lines in zip(TEXTS, (smiles, encoded.published, encoded.canonical), strict=True):
        write_lines(part / name, lines)
    if bad:
        write_lines(part / "bad.txt", bad)
    meta = {"molecules": len(smiles), "bad": len(bad), "rdkit": rdkit.__version__}
    return meta | ({"reading": asdict(told.finish())} if bad else {})


class Stored(NamedTuple):
    """What a prepared folder holds, in the order of `rows`, which are numbers in the raw file's order."""

    meta: dict[str, Any]
    nodes: UInt8[np.ndarray, "molecules max_atoms"]
    edges: UInt8[np.ndarray, "molecules max_atoms max_atoms"]
    rows: Int[np.ndarray, " molecules"]
    smiles: list[str]
    published: list[str]
    canonical: list[str]


def stored(folder: Path) -> Stored:
    """Returns the content of a prepared folder, arrays memory-mapped. Raises UserError for an altered file."""
    meta = verified_meta(folder)
    nodes, edges, rows = (read_npy(folder / name, mapped=True) for name in ARRAYS)
    smiles, published, canonical = (read_text(folder / name).splitlines() for name in TEXTS)
    return Stored(meta, nodes, edges, rows, smiles, published, canonical)


def load(
    folder: Path, vocabulary: Vocabulary, hold_out: Callable[[int], Int[np.ndarray, " held_out"]]
) -> MolecularData:
    """Returns the molecules of a prepared folder; the rows `hold_out(number of rows)` are the validation split.

    `vocabulary` is what `prepare` got. Raises UserError for a truncated or altered file and for an empty split.
    """
    with reading(folder):
        arrays = stored(folder)
        is_held_out = np.isin(arrays.rows, hold_out(arrays.meta["total"]))
        told = arrays.meta.get("reading")
        told = None if told is None else Reading.of_dict(told)
    if is_held_out.all() or not is_held_out.any():
        empty = "training" if is_held_out.all() else "validation"
        raise UserError(f"the {empty} split of the {len(arrays.rows)} molecules in {folder} is empty: raise limit")
    return data_of(folder, arrays, vocabulary, is_held_out, told)


def data_of(
    folder: Path,
    arrays: Stored,
    vocabulary: Vocabulary,
    is_held_out: Bool[np.ndarray, " molecules"],
    told: Reading | None,
) -> MolecularData:
    """Returns the molecules of a folder with their split."""
    return MolecularData(
        vocabulary=vocabulary,
        nodes=arrays.nodes,
        edges=arrays.edges,
        smiles=arrays.smiles,
        published=arrays.published,
        canonical=arrays.canonical,
        train_index=np.flatnonzero(~is_held_out),
        valid_index=np.flatnonzero(is_held_out),
        folder=folder,
        reading=told,
    )
