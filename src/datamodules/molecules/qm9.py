"""QM9 as graphs of heavy atoms, the second setting of MoFlow's author (github.com/calvin-zcx/moflow)."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from src.config.ranges import Count, Range, Seed
from src.datamodules.download import from_package
from src.datamodules.molecules.encoded import MolecularData, Row, prepare
from src.datamodules.molecules.encoded import load as load_prepared
from src.datamodules.prepared import Selection
from src.datamodules.splits import seeded_split
from src.molecules.vocabulary import QM9

PACKAGE, VERSION = "qm9pack", "1.0.3"
MEMBERS = {
    "qm9pack/data/qm9_part1.csv": "19f0a5d595462d52cd82eef3370f3e9eb55a1f52cb14985657200349568deff3",
    "qm9pack/data/qm9_part2.csv": "2bca113fdc0b28a13563c80ed9b240e934f3da6c64c64fe74ddb4f0f36036e61",
    "qm9pack/data/qm9_part3.csv": "9c5efb5733d2af149db8d95d36ff198b4ffed12d9f7b344220a1e5877d5c6a43",
}
# The author trains on 120,803 of 133,885 molecules; the package has 130,831 of them.
HELD_OUT_SHARE = 13_082 / 133_885


def load(
    data_dir: str | Path,
    *,
    max_atoms: Annotated[int, Range(QM9.max_atoms)] = QM9.max_atoms,
    limit: Count | None = None,
    seed: Seed = 0,
    skip_bad: bool = False,
    workers: Count | None = None,
    mirror: str | Path | None = None,
) -> MolecularData:
    """Returns QM9 from `data_dir`; downloads (104 MB) and prepares it there first if necessary.

    Args:
        data_dir: folder of the raw files and the prepared arrays.
        max_atoms: rows of the arrays, 9 or more for a network of larger molecules.
        limit: prepare a sample of that many molecules, drawn with `seed`.
        seed: of the sample and the split.
        skip_bad: leave out molecules that cannot be encoded, and list them in bad.txt.
        workers: processes that encode; one for each core by default.
        mirror: a local folder with the raw files, instead of the network.
    """
    folder = Path(data_dir)
    files = from_package(PACKAGE, VERSION, MEMBERS, folder, None if mirror is None else Path(mirror))
    selection, vocabulary = Selection(limit, seed, skip_bad), replace(QM9, max_atoms=max_atoms)
    kind = "" if vocabulary == QM9 else f"_of_{max_atoms}"
    rows = partial(_rows, files)
    prepared = prepare(files, rows, vocabulary, folder, selection, workers, kind)
    return load_prepared(prepared, vocabulary, lambda total: seeded_split(total, HELD_OUT_SHARE, seed))


def _rows(files: Sequence[Path]) -> list[Row]:
    return [row for path in files for row in _read(path)]


def _read(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for record in reader:
            yield Row(record["SMILES"], path, reader.line_num)
