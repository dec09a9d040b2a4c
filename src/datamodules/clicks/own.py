"""Your own clicks: a .csv or .tsv with any numerical and categorical columns, hashed into tables of one size."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
from jaxtyping import Bool

from src.config.ranges import Count, Range, Seed
from src.datamodules.clicks.criteo import CriteoDataModule
from src.datamodules.clicks.feature_spec import SPLITS, FeatureSpec, SplitFiles
from src.datamodules.download import sha256_of
from src.datamodules.fingerprint import hash_of
from src.datamodules.prepared import prepare, sums_of, verified_meta
from src.datamodules.splits import seeded_split
from src.datamodules.tables import rows_of
from src.errors import UserError
from src.printable import printable
from src.system.reading import read_npy

LAYOUT = 2
KNOWN = "test_known.npy"  # which rows of the test have a label
KINDS = (".csv", ".tsv")


@dataclass(frozen=True)
class ClickColumns:
    """The file of clicks and what its columns are.

    `label` is 0 or 1. Values of a `categorical` column are hashed to 1 .. `buckets`, without a value it is 0. A number
    of a `numerical` column is sign(x) ln(1 + |x|), without a value 0. `held_out_share` of the rows, drawn with `seed`,
    is for the test. If that is 1, rows without a label are kept, to be predicted.
    """

    file: str
    label: str = "label"
    numerical: Sequence[str] = field(default_factory=list)
    categorical: Sequence[str] = field(default_factory=list)
    buckets: Count = 1000
    held_out_share: Annotated[float, Range(above=0, most=1)] = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.numerical or not self.categorical:
            raise UserError("give datamodule.source.numerical=[COLUMN,...] and datamodule.source.categorical=[...]")
        if Path(self.file).suffix not in KINDS:
            raise UserError(f"datamodule.source.file={self.file}: give a file that ends in {' or '.join(KINDS)}")

    @property
    def features(self) -> FeatureSpec:
        """The prepared folder, without folders for the splits."""
        spec = FeatureSpec.of([self.buckets + 1] * len(self.categorical), len(self.numerical))
        names = [table.name for table in spec.tables]
        splits = {
            split: SplitFiles(
                f"{split}_label.bin", f"{split}_numerical.bin", tuple(f"{split}_{name}" for name in names)
            )
            for split in SPLITS
        }
        return replace(spec, splits=splits)


@dataclass
class Rows:
    """What was read of a file, row by row, and how many rows were dropped."""

    labels: list[int]  # -1 if unknown
    numbers: list[list[float]]
    ids: list[list[int]]
    dropped: int = 0  # without a label
    missing: int = 0  # values


class ClickFileDataModule(CriteoDataModule):
    """Clicks of one file, prepared in a folder of `data_dir` for each file and choice of columns.

    Args:
        source: the file and its columns; see ClickColumns.
        options: as for CriteoDataModule.
    """

    def __init__(self, *, source: ClickColumns, **options: Any) -> None:
        super().__init__(**options)
        self.source = source
        self.home = self.data_dir

    def fill(self) -> None:
        """Prepares the folder if necessary. Raises UserError that names file and row for a value that is none."""
        path = Path(self.source.file)
        if not path.is_file():
            raise UserError(f"datamodule.source.file={path}: there is no such file; give a .csv or .tsv")
        chosen = {key: list(value) if key.endswith("cal") else value for key, value in asdict(self.source).items()}
        origin = {"layout": LAYOUT, "sha256_of_file": sha256_of(path), **chosen}
        digest = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:12]
        self.data_dir = prepare(self.home / digest, origin, lambda part: write_rows(self.source, part))

    def setup(self, stage: str) -> None:
        if not self.splits:
            self.fill()
            super().setup(stage)
            if self.rank_and_world[0] == 0:
                print(printable(verified_meta(self.data_dir)["report"]))

    def prepare_data(self) -> None:
        self.setup("prepare")

    def content(self) -> str:
        return hash_of([sums_of(self.data_dir)])

    def known_labels(self, split: str) -> Bool[np.ndarray, " rows"] | None:
        return read_npy(self.data_dir / KNOWN) if split == "test" else None


def read_clicks(source: ClickColumns) -> Rows:
    """Returns the rows that have a label. Raises UserError that names file and row for another label or number."""
    rows = Rows([], [], [])
    only_predicted = source.held_out_share == 1
    columns = (source.label, *source.numerical, *source.categorical)
    for line, row in rows_of(Path(source.file), columns, (source.label,) if only_predicted else ()):
        values = {name: (value or "").strip() for name, value in row.items()}
        label = values[source.label]
        if not label and not only_predicted:
            rows.dropped += 1
            continue
        if label not in ("0", "1", ""):
            raise UserError(f"{source.file} line {line}: {source.label} is {label!r}; it must be 0 or 1")
        numbers = [_number(values[name], name, source.file, line) for name in source.numerical]
        ids = [1 + crc32(v.encode()) % source.buckets if (v := values[name]) else 0 for name in source.categorical]
        rows.labels.append(int(label or -1))
        rows.numbers.append(numbers)
        rows.ids.append(ids)
        rows.missing += sum(not values[name] for name in (*source.numerical, *source.categorical))
    return rows


def write_rows(source: ClickColumns, folder: Path) -> dict[str, Any]:
    """Writes the file as a split binary directory; returns the report of what was read and dropped."""
    rows, spec = read_clicks(source), source.features
    total = len(rows.labels)
    is_test = np.isin(np.arange(total), seeded_split(total, source.held_out_share, source.seed))
    if not is_test.any() or (source.held_out_share < 1 and is_test.all()):
        raise UserError(f"{source.file} has {total} rows with a label, too few for training and test; add rows")
    numbers, ids = np.array(rows.numbers), np.array(rows.ids)
    is_known = np.array(rows.labels) >= 0
    labels = np.maximum(rows.labels, 0).astype(np.uint8)
    np.save(folder / KNOWN, is_known[is_test])
    numbers = (np.sign(numbers) * np.log1p(np.abs(numbers))).astype(np.float16)
    for split, chosen in (("train", ~is_test), ("test", is_test)):
        _write_split(folder, spec, split, chosen, labels, numbers, ids)
    spec.write(folder)
    read = total + rows.dropped
    report = f"{source.file}: {read:,} rows read; "
    if source.held_out_share == 1:
        report += f"{int((~is_known).sum()):,} without a label in column {source.label}"
    else:
        report += f"dropped {rows.dropped:,} without a label in column {source.label}"
    clicks = f", clicks {labels[is_known].mean():.1%}" if is_known.any() else ""
    return {
        "report": f"{report}; {rows.missing:,} missing values became 0\n{int((~is_test).sum()):,} rows to train, "
        f"{int(is_test.sum()):,} to test{clicks}; {len(source.numerical)} numerical and "
        f"{len(source.categorical)} categorical columns, these hashed to {source.buckets:,} ids each"
    }


def _write_split(
    folder: Path,
    spec: FeatureSpec,
    split: str,
    chosen: Bool[np.ndarray, " rows"],
    labels: np.ndarray,
    numbers: np.ndarray,
    ids: np.ndarray,
) -> None:
    files = spec.splits[split]
    labels[chosen].tofile(folder / files.label)
    numbers[chosen].tofile(folder / files.numerical)
    for column, (file, dtype) in enumerate(zip(files.ids, spec.dtypes, strict=True)):
        ids[chosen, column].astype(dtype).tofile(folder / file)


def _number(text: str, column: str, file: str, line: int) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise UserError(f"{file} line {line}: {column} is {text!r}; it must be a number, or empty")
    return value
