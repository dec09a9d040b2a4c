"""Parses raw entries into a prepared folder of molecular graphs, on all cores, and loads it."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rdkit
from jaxtyping import Float, Int
from rdkit import RDLogger

from src.datamodules import prepared
from src.datamodules.graphs.data import Arrays, GraphData, Molecule, MoleculeError
from src.datamodules.prepared import LEAVE_OUT, Selection, reading, verified_meta, write_lines
from src.errors import UserError
from src.system.progress import item_progress
from src.system.reading import read_npy, read_text
from src.system.workers import WorkerPool, cpu_count

LAYOUT = 2
CHUNK = 16  # molecules that a worker parses at a time
BAD, NOTED = "bad.txt", "unmatched.txt"
Parse = Callable[[Any], tuple[Molecule, str]]
Remarks = list[tuple[int, str]]
Splits = Mapping[str, Int[np.ndarray, " rows"]]


@dataclass(frozen=True)
class Entries:
    """The unparsed molecules of a source.

    Attributes:
        contents: the argument of `parse`, one for each molecule.
        names: of the molecules, in messages and predictions.
        targets: NaN if unknown.
        units: of each target by its name.
    """

    contents: Sequence[Any]
    names: list[str]
    targets: Float[np.ndarray, "molecules targets"]
    units: Mapping[str, str]


class Parsed(NamedTuple):
    """The molecules of one chunk, and (position, reason) of the bad ones and (position, note) of those with a note."""

    arrays: Arrays
    bad: Remarks
    noted: Remarks


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
    and a note, which unmatched.txt lists. Raises UserError for a molecule that cannot be used (with `skip_bad`, bad.txt
    lists them instead).
    """
    origin = {"layout": LAYOUT, "inputs": dict(inputs), "selection": asdict(selection)}

    def write(part: Path) -> dict[str, Any]:
        entries = read()
        written = _write(part, entries, selection.rows(len(entries.names)), parse, selection.skip_bad, workers)
        return written | {"report": f"{next(iter(inputs))}: {written['report']}"}

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
        splits = {name: rows[rows >= 0] for name, rows in split_rows.items()}
        return GraphData(
            arrays=Arrays(*(read_npy(folder / f"{field}.npy") for field in Arrays._fields)),
            names=read_text(folder / "names.txt").splitlines(),
            targets=read_npy(folder / "targets.npy"),
            units=meta["units"],
            splits=splits | {"all": np.arange(len(entries_of_rows))},
            skip_bad=meta["selection"]["skip_bad"],
            folder=folder,
            report=meta.get("report", ""),
        )


def _write(
    part: Path,
    entries: Entries,
    chosen: Int[np.ndarray, " chosen"],
    parse: Parse,
    skip_bad: bool,
    workers: int | None,
) -> dict[str, Any]:
    parts: list[Arrays] = []
    good = np.ones(len(chosen), bool)
    lines: dict[str, list[str]] = {BAD: [], NOTED: []}
    for start, parsed in _parsed([entries.contents[i] for i in chosen], parse, workers):
        parts.append(parsed.arrays)
        for position, reason in parsed.bad:
            problem = f"{entries.names[chosen[start + position]]} {reason}"
            if not skip_bad:
                raise UserError(f"{problem}; correct the file, or {LEAVE_OUT}")
            good[start + position] = False
            lines[BAD].append(problem)
        lines[NOTED] += [f"{entries.names[chosen[start + position]]} {note}" for position, note in parsed.noted]
    if not good.any():
        raise UserError(f"no molecule can be used: {lines[BAD][0] if lines[BAD] else 'the file is empty'}")
    rows = chosen[good]
    arrays = Arrays.joined(parts)._asdict() | {"targets": entries.targets[rows], "rows": rows}
    for name, array in arrays.items():
        np.save(part / f"{name}.npy", array)
    write_lines(part / "names.txt", [entries.names[i] for i in rows])
    for name, texts in lines.items():
        if texts:
            write_lines(part / name, texts)
    return {
        "total": len(entries.names),
        "report": reading_report(len(chosen), entries, rows, lines[BAD]),
        "molecules": len(rows),
        "units": dict(entries.units),
        "bad": len(lines[BAD]),
        "unmatched": len(lines[NOTED]),
        "rdkit": rdkit.__version__,
    }


def reading_report(read: int, entries: Entries, rows: Int[np.ndarray, " rows"], bad: list[str]) -> str:
    """Returns what was read and kept, with an example of what was dropped, and how many have each target."""
    lines = [f"{read:,} molecules read, {len(rows):,} kept"]
    if bad:
        lines[0] += f", {len(bad):,} dropped (listed in bad.txt), as {bad[0]}"
    counts = np.isfinite(entries.targets[rows]).sum(0)
    missing = [f"{name} ({count:,})" for name, count in zip(entries.units, counts, strict=True) if count < len(rows)]
    if missing:
        lines.append(f"not every molecule has a value of {', '.join(missing)}")
    return "\n".join(lines)


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
    bad: Remarks = []
    noted: Remarks = []
    for position, content in enumerate(contents):
        try:
            molecule, note = parse(content)
        except MoleculeError as error:
            bad.append((position, str(error)))
            continue
        molecules.append(molecule)
        if note:
            noted.append((position, note))
    return Parsed(Arrays.of(molecules), bad, noted)
