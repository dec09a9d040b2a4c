"""From raw entries to a prepared folder of molecular graphs, with all cores, and back."""

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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from src.datamodules import prepared
from src.datamodules.graphs.data import Arrays, GraphData, Molecule, MoleculeError
from src.datamodules.prepared import Selection, opened, write_lines
from src.errors import UserError
from src.system.workers import WorkerPool, cpu_count

LAYOUT = 1
CHUNK = 16  # molecules that a worker is given at a time
BAD, NOTED = "bad.txt", "unmatched.txt"
Parse = Callable[[Any], tuple[Molecule, str]]
Remarks = list[tuple[int, str]]
Splits = Mapping[str, Int[np.ndarray, " rows"]]


@dataclass(frozen=True)
class Entries:
    """What a source holds, before anything is parsed.

    Attributes:
        contents: what `parse` is given, one for each molecule.
        names: what each molecule is called in messages and predictions.
        targets: NaN where unknown.
        units: of each target by its name.
    """

    contents: Sequence[Any]
    names: list[str]
    targets: Float[np.ndarray, "molecules targets"]
    units: Mapping[str, str]


class Parsed(NamedTuple):
    """One worker's share: the molecules, and (position, reason) of those that are bad or worth a note."""

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
    """The folder inside `folder` with the graphs of the chosen molecules, made where it is not there yet.

    `inputs` says what is read. `parse`, a module-level function, makes a molecule of one entry's content and may add a
    note, which unmatched.txt then lists. Raises UserError for a molecule that cannot be used (unless `skip_bad`: then
    bad.txt lists them).
    """
    origin = {"layout": LAYOUT, "inputs": dict(inputs), "selection": asdict(selection)}

    def write(part: Path) -> dict[str, Any]:
        entries = read()
        return _write(part, entries, selection.rows(len(entries.names)), parse, selection.skip_bad, workers)

    return prepared.prepare(folder / f"graphs_{selection.name}", origin, write)


def load_graphs(folder: Path, split: Callable[[int], Splits]) -> GraphData:
    """The molecules of a prepared folder; `split(number of entries)` says which entries belong to which split.

    Raises UserError for a truncated or altered file.
    """
    meta = opened(folder)
    rows = np.load(folder / "rows.npy")
    places = np.full(meta["total"], -1)
    places[rows] = np.arange(len(rows))
    # In the split's own order: a random one makes the batches of an evaluation alike in size, which is one shape.
    splits = {name: places[entries][places[entries] >= 0] for name, entries in split(meta["total"]).items()}
    return GraphData(
        arrays=Arrays(*(np.load(folder / f"{field}.npy") for field in Arrays._fields)),
        names=(folder / "names.txt").read_text("utf-8").splitlines(),
        targets=np.load(folder / "targets.npy"),
        units=meta["units"],
        splits=splits | {"all": np.arange(len(rows))},
        skip_bad=meta["selection"]["skip_bad"],
        folder=folder,
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
                raise UserError(f"{problem}; correct the file, or set skip_bad=true to leave such molecules out")
            good[start + position] = False
            lines[BAD].append(problem)
        lines[NOTED] += [f"{entries.names[chosen[start + position]]} {note}" for position, note in parsed.noted]
    if not good.any():
        raise UserError(
            f"there is no molecule that can be used: {lines[BAD][0] if lines[BAD] else 'the file is empty'}"
        )
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
        "molecules": len(rows),
        "units": dict(entries.units),
        "bad": len(lines[BAD]),
        "unmatched": len(lines[NOTED]),
        "rdkit": rdkit.__version__,
    }


def _parsed(contents: Sequence[Any], parse: Parse, workers: int | None) -> Iterator[tuple[int, Parsed]]:
    """The chunks' starts and results in order; few are under way at a time, so that memory stays bounded."""
    starts = iter(range(0, len(contents), CHUNK))
    chunks = max(1, -(-len(contents) // CHUNK))
    under_way: deque[tuple[int, Future[Parsed]]] = deque()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        WorkerPool(min(workers or cpu_count(), chunks)) as pool,
    ):

        def send(count: int) -> None:
            for start in islice(starts, count):
                under_way.append((start, pool.submit(parse_chunk, parse, contents[start : start + CHUNK])))

        bar = progress.add_task("encoding graphs", total=len(contents))
        send(4 * pool.workers)
        while under_way:
            start, future = under_way.popleft()
            yield start, future.result()
            progress.update(bar, completed=min(start + CHUNK, len(contents)))
            send(1)


def parse_chunk(parse: Parse, contents: Sequence[Any]) -> Parsed:
    """One worker's share."""
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
