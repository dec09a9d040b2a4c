"""Parses raw entries into a prepared folder of molecular graphs, on all cores, and loads it."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rdkit
from jaxtyping import Float, Int
from rdkit import RDLogger

from src.datamodules import prepared
from src.datamodules.graphs.data import Arrays, GraphData, Molecule, MoleculeError
from src.datamodules.graphs.own_splits import OwnSplit
from src.datamodules.prepared import LEAVE_OUT, Selection, reading, verified_meta, write_lines
from src.errors import UserError
from src.measure.reading import Reading
from src.system.progress import item_progress
from src.system.reading import read_npy, read_text
from src.system.workers import WorkerPool, cpu_count

LAYOUT = 2
CHUNK = 16  # molecules that a worker parses at a time
BAD, NOTED = "bad.txt", "unmatched.txt"
GROUPS, SCAFFOLDS, COLUMN, BOXES, CHANGED = (
    "groups.txt",
    "scaffolds.txt",
    "column.txt",
    "boxes.npy",
    "changed.npy",
)  # of own files
Splits = Mapping[str, Int[np.ndarray, " rows"]]


@dataclass(frozen=True)
class Entries:
    """The unparsed molecules of a source.

    Attributes:
        contents: the argument of `parse`, one for each molecule.
        names: of the molecules, in messages and predictions.
        targets: NaN if unknown.
        units: of each target by its name.
        notes: what the reader decided, for the report of a person's own file.
        column: the value of each molecule by which a person splits the file; empty if by none.
    """

    contents: Sequence[Any]
    names: list[str]
    targets: Float[np.ndarray, "molecules targets"]
    units: Mapping[str, str]
    notes: list[str] = field(default_factory=list)
    column: list[str] = field(default_factory=list)


class Outcome(NamedTuple):
    """A parsed molecule and what is not as it was written."""

    molecule: Molecule
    note: str = ""  # for unmatched.txt
    changes: tuple[str, ...] = ()  # ways in which it was changed
    group: str = ""  # the same for all conformers of a molecule
    scaffold: str = ""
    box: Float[np.ndarray, "3 3"] | None = None  # lattice vectors of a periodic one, zero where not periodic


Parse = Callable[[Any], Outcome]


class Bad(NamedTuple):
    """Why a molecule cannot be used; `kind` is the reason without its values."""

    position: int
    reason: str
    kind: str


class Parsed(NamedTuple):
    """The molecules of one chunk, (position, all but the molecule) of each, and the bad ones."""

    arrays: Arrays
    good: list[tuple[int, Outcome]]
    bad: list[Bad]


def prepare_graphs(
    folder: Path,
    inputs: Mapping[str, Any],
    read: Callable[[], Entries],
    parse: Parse,
    selection: Selection,
    workers: int | None = None,
) -> Path:
    """Parses the selected molecules into a subfolder of `folder` unless it exists; returns the subfolder.

    `inputs` identifies the files read. `parse`, a module-level function, returns the molecule of one entry's content
    and what was changed; unmatched.txt lists the notes. Raises UserError for a molecule that cannot be used (with
    `skip_bad`, bad.txt lists them instead).
    """
    origin = {"layout": LAYOUT, "inputs": dict(inputs), "selection": asdict(selection)}

    def write(part: Path) -> dict[str, Any]:
        entries = read()
        report = Reading(next(iter(inputs)), "molecules")
        return _write(part, entries, selection.rows(len(entries.names)), parse, selection.skip_bad, workers, report)

    return prepared.prepare(folder / f"graphs_{selection.name}", origin, write)


def load_graphs(folder: Path, split: Callable[[int], Splits]) -> GraphData:
    """Returns the molecules of a prepared folder; `split(number of entries)` returns the entries of each split.

    Raises UserError for a truncated or altered file.
    """
    with reading(folder):
        meta = verified_meta(folder)
        entries_of_rows = read_npy(folder / "rows.npy")
        row_of_entry = np.full(meta["total"], -1)
        row_of_entry[entries_of_rows] = np.arange(len(entries_of_rows))
        # Keep the split's random order: evaluation batches then have similar sizes, and so share one shape.
        split_rows = {name: row_of_entry[entries] for name, entries in split(meta["total"]).items()}
        return _graph_data(folder, meta, {name: rows[rows >= 0] for name, rows in split_rows.items()}, None)


def load_own_graphs(folder: Path, split: OwnSplit) -> GraphData:
    """Returns the molecules of a person's own file, split as it says. Raises UserError as `load_graphs`."""
    with reading(folder):
        meta = verified_meta(folder)
        report = Reading.of_dict(meta["reading"])
        groups, scaffolds = (read_text(folder / name).split("\n")[:-1] for name in (GROUPS, SCAFFOLDS))
        column = read_text(folder / COLUMN).split("\n")[:-1] if COLUMN in meta["sha256"] else []
        return _graph_data(folder, meta, split.of(groups, scaffolds, column, report), report)


def _graph_data(folder: Path, meta: dict[str, Any], splits: Splits, report: Reading | None) -> GraphData:
    names = read_text(folder / "names.txt").splitlines()
    return GraphData(
        arrays=Arrays(*(read_npy(folder / f"{field}.npy") for field in Arrays._fields)),
        names=names,
        targets=read_npy(folder / "targets.npy"),
        units=meta["units"],
        splits={**splits, "all": np.arange(len(names))},
        skip_bad=meta["selection"]["skip_bad"],
        folder=folder,
        reading=report,
        changed=read_npy(folder / CHANGED) if CHANGED in meta["sha256"] else None,
        boxes=read_npy(folder / BOXES) if BOXES in meta["sha256"] else None,
    )


def _write(
    part: Path,
    entries: Entries,
    chosen: Int[np.ndarray, " chosen"],
    parse: Parse,
    skip_bad: bool,
    workers: int | None,
    report: Reading,
) -> dict[str, Any]:
    parts: list[Arrays] = []
    good = np.ones(len(chosen), bool)
    outcomes: list[Outcome] = []
    lines: dict[str, list[str]] = {BAD: [], NOTED: []}
    report.read = len(chosen)
    for start, parsed in _parsed([entries.contents[i] for i in chosen], parse, workers):
        parts.append(parsed.arrays)
        for position, reason, kind in parsed.bad:
            problem = f"{entries.names[chosen[start + position]]} {reason}"
            if not skip_bad:
                raise UserError(f"{problem}; correct the file, or {LEAVE_OUT}")
            good[start + position] = False
            report.drop(kind, entries.names[chosen[start + position]] if reason == kind else problem)
            lines[BAD].append(problem)
        for position, outcome in parsed.good:
            name = entries.names[chosen[start + position]]
            report.change(outcome.changes, name)
            lines[NOTED] += [f"{name} {outcome.note}"] if outcome.note else []
            outcomes.append(outcome)
    if not good.any():
        raise UserError(_nothing_left(report.finish()))
    report.notes += entries.notes
    if len(chosen) < len(entries.names):
        report.notes.append(f"a sample of {len(chosen):,} of the file's {len(entries.names):,} molecules")
    if lines[BAD]:
        report.notes.append(f"the dropped molecules are listed in {BAD} of the prepared folder")
    rows = chosen[good]
    arrays = Arrays.joined(parts)._asdict() | {"targets": entries.targets[rows], "rows": rows}
    for name, array in arrays.items():
        np.save(part / f"{name}.npy", array)
    write_lines(part / "names.txt", [entries.names[i] for i in rows])
    for name, texts in lines.items():
        if texts:
            write_lines(part / name, texts)
    if any(outcome.group for outcome in outcomes):  # as of own files alone
        write_lines(part / GROUPS, [outcome.group for outcome in outcomes])
        write_lines(part / SCAFFOLDS, [outcome.scaffold for outcome in outcomes])
        np.save(part / CHANGED, np.array([bool(outcome.changes) for outcome in outcomes]))
    if entries.column:
        write_lines(part / COLUMN, [" ".join(entries.column[i].split()) for i in rows])
    if any(outcome.box is not None for outcome in outcomes):
        np.save(part / BOXES, np.stack([np.zeros((3, 3)) if o.box is None else o.box for o in outcomes]))
    return {
        "total": len(entries.names),
        "reading": asdict(report.finish()),
        "molecules": len(rows),
        "units": dict(entries.units),
        "bad": len(lines[BAD]),
        "unmatched": len(lines[NOTED]),
        "rdkit": rdkit.__version__,
    }


def _nothing_left(report: Reading) -> str:
    """Returns why a source has no molecule that can be used."""
    if not report.read:
        return f"no molecule can be used: {report.source} is empty"
    reasons = "; ".join(f"{remark.count:,} {remark.what}, as {remark.examples[0]}" for remark in report.dropped)
    return f"no molecule can be used of the {report.read:,} in {report.source}: {reasons}"


def _parsed(contents: Sequence[Any], parse: Parse, workers: int | None) -> Iterator[tuple[int, Parsed]]:
    """Yields the start and result of each chunk, in order; few chunks are in flight at a time, to bound memory."""
    starts = iter(range(0, len(contents), CHUNK))
    chunks = max(1, -(-len(contents) // CHUNK))
    in_flight: deque[tuple[int, Future[Parsed]]] = deque()
    with (
        item_progress() as progress,
        WorkerPool(min(workers or cpu_count(), chunks)) as pool,
    ):

        def submit(count: int) -> None:
            for start in islice(starts, count):
                in_flight.append((start, pool.submit(parse_chunk, parse, contents[start : start + CHUNK])))

        bar = progress.add_task("encoding graphs", total=len(contents))
        submit(4 * pool.workers)
        while in_flight:
            start, future = in_flight.popleft()
            yield start, future.result()
            progress.update(bar, completed=min(start + CHUNK, len(contents)))
            submit(1)


def parse_chunk(parse: Parse, contents: Sequence[Any]) -> Parsed:
    """Parses one chunk, in a worker."""
    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    molecules: list[Molecule] = []
    good: list[tuple[int, Outcome]] = []
    bad: list[Bad] = []
    blank = Arrays.of([]).molecule(0)  # molecules travel once, concatenated
    for position, content in enumerate(contents):
        try:
            outcome = parse(content)
        except MoleculeError as error:
            bad.append(Bad(position, str(error), error.kind))
            continue
        molecules.append(outcome.molecule)
        good.append((position, outcome._replace(molecule=blank)))
    return Parsed(Arrays.of(molecules), good, bad)
