"""A person's own molecules as arrays: standardised, checked against their SMILES, counted, and split into two."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import rdkit
from jaxtyping import Bool, Int
from rdkit import Chem
from rdkit.Chem.Scaffolds import MurckoScaffold

from src.datamodules import prepared
from src.datamodules.download import sha256_of
from src.datamodules.molecules.encoded import (
    ARRAYS,
    TEXTS,
    MolecularData,
    Row,
    data_of,
    stored,
)  # fmt: skip
from src.datamodules.molecules.smiles_rows import SmilesRows
from src.datamodules.prepared import LEAVE_OUT, Selection, reading, write_lines
from src.datamodules.splits import (
    TRAIN,
    Splits,
    grouped_split,
    seeded_split,
    shared_with_train,
    split_by_column,
)  # fmt: skip
from src.errors import UserError, shortened
from src.measure.reading import Reading, named
from src.molecules.build import Edges, Nodes
from src.molecules.encode import EncodingError, Reason, in_chunks, quiet
from src.molecules.standardise import Allowed, Represented, represent
from src.molecules.vocabulary import Vocabulary, of_elements
from src.system.progress import item_progress
from src.system.reading import read_text

LAYOUT = 1
HELD_OUT = "val"
GROUPS, BAD = "groups.txt", "bad.txt"
SHOWN = 80  # characters of a SMILES
SplitBy = Literal["grouped", "random", "scaffold", "column"]
PREPARED = "scaffold", "column"  # splits that the prepared folder has the groups of
SOURCE = "datamodule.source"
ACCEPTED_BY = {
    Reason.FRAGMENTS: f"{SOURCE}.keep_largest_fragment=true keeps the largest",
    Reason.STEREO: f"{SOURCE}.drop_stereo=true removes it",
    Reason.ISOTOPE: f"{SOURCE}.drop_isotopes=true removes them",
    Reason.RADICAL: f"{SOURCE}.saturate_radicals=true adds hydrogen",
    Reason.CHARGE: f"{SOURCE}.neutralise=true moves protons where that helps",
    Reason.TOO_LARGE: f"{SOURCE}.max_atoms",
    Reason.UNKNOWN_ATOM: f"{SOURCE}.elements",
    Reason.RARE: f"{SOURCE}.rare_below, or {SOURCE}.elements",
}


@dataclass(frozen=True)
class Settings:
    """What decides on the prepared arrays, beside the file and the sample.

    Attributes:
        elements: symbols of the classes; None: those of `rare_below` or more different molecules.
        split: decides on the prepared folder where it is one of PREPARED.
    """

    max_atoms: int
    elements: tuple[str, ...] | None = None
    rare_below: int = 1
    allowed: Allowed = field(default_factory=Allowed)
    drop_duplicates: bool = False
    column: str = "smiles"
    split: SplitBy = "grouped"
    split_column: str | None = None


Result = tuple[Nodes, Edges, Represented] | EncodingError


class Rows:
    """The rows of a file while they become molecules: which are kept, what became of them."""

    def __init__(self, rows: list[Row], skip_bad: bool) -> None:
        self.rows, self.skip_bad = rows, skip_bad
        self.reading = Reading(rows[0].file.name, "molecules", read=len(rows))
        self.kept = np.ones(len(rows), bool)
        self.bad: list[tuple[int, str]] = []

    def drop(self, position: int, error: EncodingError) -> None:
        """Leaves a row out. Raises UserError instead where bad molecules are refused."""
        smiles, file, line = self.rows[position]
        name = repr(shortened(smiles, SHOWN))
        key = ACCEPTED_BY.get(error.reason)
        if not self.skip_bad and error.reason is not Reason.DUPLICATE:
            way_out = f" ({key})" if key else ""
            raise UserError(f"{file} line {line}: {name} {error}{way_out}; correct the file, or {LEAVE_OUT}")
        self.kept[position] = False
        self.bad.append((position, f"{file} line {line}: {name} {error}"))
        self.reading.drop(f"{error.reason}{f' ({key})' if key else ''}", f"line {line}: {name}{error.detail}")

    def change(self, position: int, molecule: Represented) -> None:
        """Notes what was removed from a kept molecule."""
        smiles, _, line = self.rows[position]
        became = f"line {line}: {shortened(smiles, SHOWN)!r} -> {shortened(molecule.canonical, SHOWN)!r}"
        self.reading.change(molecule.changes, became)

    def check(self) -> None:
        """Raises UserError, with the reasons, where no row is kept."""
        if not self.kept.any():
            reasons = "; ".join(
                f"{remark.count:,}: {remark.what}, as {remark.examples[0]}" for remark in self.reading.finish().dropped
            )
            raise UserError(f"no molecule of {self.rows[0].file} can be used: {reasons}")


def prepare_own(
    path: Path,
    read: Callable[[], SmilesRows],
    settings: Settings,
    folder: Path,
    selection: Selection,
    workers: int | None = None,
) -> Path:
    """Prepares a subfolder of `folder` for this file and these settings unless it exists; returns the subfolder.

    Raises UserError where no molecule is left; with `skip_bad` false, for the first that would be dropped.
    """
    plain = asdict(settings) | {
        "elements": None if settings.elements is None else list(settings.elements),
        "split": settings.split if settings.split in PREPARED else None,
    }
    origin = {
        "layout": LAYOUT,
        "inputs": {path.name: sha256_of(path)},
        "settings": plain,
        "selection": asdict(selection),
    }
    key = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:8]

    def write(part: Path) -> dict[str, Any]:
        source = read()
        if not source.rows:
            raise UserError(f"{path} has no molecule: check its contents")
        chosen = selection.rows(len(source.rows))
        written = _write(part, source, chosen, settings, selection, workers)
        return written | {"total": len(source.rows)}

    return prepared.prepare(folder / f"prepared_{path.stem[:SHOWN]}_{key}", origin, write)


def load_own(folder: Path, settings: Settings, share: float, seed: int, values: Sequence[str]) -> MolecularData:
    """Returns the molecules of a prepared folder with the split that the settings ask for.

    Args:
        share: of the molecules to hold out, drawn with `seed`; of no effect where a column says it.
        values: of the split column: first that of training, then those of held-out rows.

    Raises UserError for a truncated or altered file and for an empty split.
    """
    with reading(folder):
        arrays = stored(folder)
        told = Reading.of_dict(arrays.meta["reading"])
        groups = read_text(folder / GROUPS).splitlines() if settings.split in PREPARED else []
        vocabulary = Vocabulary(told.source, tuple(arrays.meta["atomic_numbers"]), settings.max_atoms)
        shares, total = {HELD_OUT: share}, len(arrays.rows)
        if settings.split == "random":  # of the file's rows, so that a dropped one moves no other
            splits = _by_mask(np.isin(arrays.rows, seeded_split(arrays.meta["total"], share, seed)))
        elif settings.split == "column":
            splits = _by_values(groups, values, f"{told.source}, column '{settings.split_column}'")
        else:
            splits = grouped_split(groups or arrays.canonical, shares, seed)
    told.split = {
        "grouped": f"by canonical SMILES, seed {seed}",
        "random": f"random, seed {seed}",
        "scaffold": f"by Bemis-Murcko scaffold, without rings by canonical SMILES, seed {seed}",
        "column": f"column '{settings.split_column}'",
    }[settings.split]
    if told.dropped:
        told.notes.append(f"all that was dropped is listed in {folder / BAD}")
    told.splits = {name: len(splits[name]) for name in (TRAIN, HELD_OUT)}
    told.shared = shared_with_train(arrays.canonical, splits)
    empty = next((name for name, count in told.splits.items() if not count), None)
    if empty is not None:
        groups_of = len(set(groups or arrays.canonical))
        raise UserError(
            f"{told.source}: no molecule is left for the {empty} split of {total:,} molecules, split {told.split} "
            f"({groups_of:,} different); give more, or another {SOURCE}.split"
        )
    held_out = np.zeros(total, bool)
    held_out[splits[HELD_OUT]] = True
    return data_of(folder, arrays, vocabulary, held_out, told)


def _write(
    part: Path,
    source: SmilesRows,
    chosen: Int[np.ndarray, " chosen"],
    settings: Settings,
    selection: Selection,
    workers: int | None,
) -> dict[str, Any]:
    rows = Rows([source.rows[i] for i in chosen], selection.skip_bad)
    told = rows.reading
    told.notes += source.notes
    if len(chosen) < len(source.rows):
        told.notes.append(f"a sample of {len(source.rows):,} molecules, drawn with seed {selection.seed}")
    molecules: dict[int, Represented] = {}
    nodes = np.zeros((len(chosen), settings.max_atoms), np.uint8)
    edges = np.zeros((len(chosen), settings.max_atoms, settings.max_atoms), np.uint8)
    for position, result in _represented([row.smiles for row in rows.rows], settings, told.source, workers):
        if isinstance(result, EncodingError):
            rows.drop(position, result)
        else:
            nodes[position], edges[position], molecules[position] = result
    rows.check()
    vocabulary = _vocabulary(rows, molecules, settings)
    rows.check()
    told.notes += _duplicates(rows, molecules, settings.drop_duplicates)
    positions = np.flatnonzero(rows.kept).tolist()
    for row, position in enumerate(positions):  # in place: a copy would take as much memory again
        rows.change(position, molecules[position])
        nodes[row], edges[row] = vocabulary.class_of[nodes[position]], edges[position]
    count = len(positions)
    for name, array in zip(ARRAYS, (nodes[:count], edges[:count], chosen[rows.kept]), strict=True):
        np.save(part / name, array)
    kept = [molecules[position] for position in positions]
    canonical = [molecule.canonical for molecule in kept]
    texts = [rows.rows[position].smiles for position in positions], [molecule.published for molecule in kept], canonical
    for name, lines in zip(TEXTS, texts, strict=True):
        write_lines(part / name, lines)
    if settings.split == "column":
        write_lines(part / GROUPS, [source.marks[i] for i in chosen[rows.kept]])
    elif settings.split == "scaffold":
        write_lines(part / GROUPS, _scaffolds(canonical, workers))
    if rows.bad:
        write_lines(part / BAD, [line for _, line in sorted(rows.bad)])
    return {
        "molecules": len(kept),
        "bad": len(rows.bad),
        "atomic_numbers": list(vocabulary.atomic_numbers),
        "reading": asdict(told.finish()),
        "rdkit": rdkit.__version__,
    }


def _represented(
    smiles: Sequence[str], settings: Settings, name: str, workers: int | None
) -> Iterator[tuple[int, Result]]:
    """Yields each position with its molecule, or why there is none."""
    argument = settings.allowed, settings.max_atoms
    with item_progress() as progress:
        bar = progress.add_task(f"encoding {name}", total=len(smiles))
        for start, results in in_chunks(smiles, represent_chunk, argument, workers):
            yield from enumerate(results, start)
            progress.advance(bar, len(results))


def represent_chunk(smiles: list[str], argument: tuple[Allowed, int]) -> list[Result]:
    """Represents one chunk, in a worker."""
    quiet()
    results: list[Result] = []
    for text in smiles:
        try:
            results.append(represent(text, *argument))
        except EncodingError as error:
            results.append(error)
    return results


def _vocabulary(rows: Rows, molecules: dict[int, Represented], settings: Settings) -> Vocabulary:
    """Returns the classes of the elements that are given, or common; leaves out molecules with others."""
    name = rows.reading.source
    if settings.elements is None:
        numbers = _common(rows, molecules, settings.rare_below)
        return Vocabulary(name, (0, *numbers), settings.max_atoms)
    vocabulary = of_elements(name, settings.elements, settings.max_atoms)
    for position, molecule in molecules.items():
        if others := molecule.elements - set(vocabulary.atomic_numbers):
            detail = f" of {name}: {', '.join(map(_symbol, sorted(others)))}"
            rows.drop(position, EncodingError(Reason.UNKNOWN_ATOM, detail))
    return vocabulary


def _common(rows: Rows, molecules: dict[int, Represented], least: int) -> list[int]:
    """Returns the elements that `least` different molecules or more have; leaves out molecules with others."""
    left = dict(molecules)
    rare: dict[str, int] = {}
    while True:
        distinct = {molecule.canonical: molecule.elements for molecule in left.values()}
        counts = Counter(number for elements in distinct.values() for number in elements)
        new = {number: count for number, count in sorted(counts.items()) if count < least}
        rare |= {_symbol(number): count for number, count in new.items()}
        if not new:
            break
        for position, molecule in list(left.items()):
            if others := sorted(molecule.elements & new.keys()):
                del left[position]
                rows.drop(position, EncodingError(Reason.RARE, f": {', '.join(map(_symbol, others))}"))
    if rare:
        rows.reading.notes.append(f"elements of fewer than {least} different molecules: {named(rare)}")
    common = {_symbol(number): counts[number] for number in sorted(counts)}
    rows.reading.notes.append(f"different molecules with each element: {named(common)}")
    return sorted(counts)


def _duplicates(rows: Rows, molecules: dict[int, Represented], drop: bool) -> list[str]:
    """Returns a note on molecules that stand in several rows; leaves out all but the first if `drop`."""
    first: dict[str, int] = {}
    again: list[tuple[int, int]] = []
    for position in np.flatnonzero(rows.kept).tolist():
        earlier = first.setdefault(molecules[position].canonical, position)
        if earlier != position:
            again.append((position, earlier))
    if not again:
        return []
    if drop:
        for position, earlier in again:
            detail = f": line {rows.rows[earlier].line}, {shortened(rows.rows[earlier].smiles, SHOWN)!r}"
            rows.drop(position, EncodingError(Reason.DUPLICATE, detail))
        return []
    one, other = (rows.rows[position] for position in again[0])
    example = (
        f"line {one.line} {shortened(one.smiles, SHOWN)!r} is line {other.line} {shortened(other.smiles, SHOWN)!r}"
    )
    return [
        f"{len(again):,} are the molecule of an earlier line, as {example}; {SOURCE}.drop_duplicates=true drops them"
    ]


def _scaffolds(canonical: Sequence[str], workers: int | None) -> list[str]:
    """Returns the Bemis-Murcko scaffold of each molecule; of one without rings its own SMILES."""
    return [text for _, chunk in in_chunks(canonical, scaffolds_of_chunk, None, workers) for text in chunk]


def scaffolds_of_chunk(smiles: list[str], _: None) -> list[str]:
    """Returns the scaffolds of one chunk, in a worker."""
    quiet()
    return [MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.MolFromSmiles(text)) or text for text in smiles]


def _by_mask(held_out: Bool[np.ndarray, " molecules"]) -> Splits:
    return {TRAIN: np.flatnonzero(~held_out), HELD_OUT: np.flatnonzero(held_out)}


def _by_values(marks: Sequence[str], values: Sequence[str], where: str) -> Splits:
    """Returns the split of a column: the rows of the first of `values` are for training, those of the others not."""
    names = {TRAIN if i == 0 else f"{HELD_OUT} {i}": value for i, value in enumerate(values)}
    splits = split_by_column(marks, names, f"{where} ({SOURCE}.split_values)")
    held_out = [rows for name, rows in splits.items() if name != TRAIN]
    return {TRAIN: splits[TRAIN], HELD_OUT: np.sort(np.concatenate([np.zeros(0, np.int64), *held_out]))}


def _symbol(number: int) -> str:
    return Chem.GetPeriodicTable().GetElementSymbol(number)
