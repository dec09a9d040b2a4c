"""Your own clicks: a table with any numerical and categorical columns, hashed into tables of one size."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64

from src.datamodules.clicks.criteo import CriteoDataModule
from src.datamodules.clicks.feature_spec import SPLITS, FeatureSpec, SplitFiles
from src.datamodules.clicks.own_rows import NO_VALUE, TEST, ClickColumns, Rows, read_clicks, splits_of
from src.datamodules.clicks.seen import counted
from src.datamodules.download import sha256_of
from src.datamodules.fingerprint import hash_of
from src.datamodules.prepared import prepare, reading, sums_of, verified_meta
from src.errors import UserError
from src.measure.reading import Reading
from src.system.reading import read_npy

LAYOUT = 3
KNOWN = "test_known.npy"  # which rows of the test have a label
VALUES = "{}_values.npy"  # the categories of a split, as `counted` returns them
LISTS = ("numerical", "categorical", "missing")  # keys


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
            raise UserError(f"datamodule.source.file={path}: there is no such file; give a table")
        chosen = {key: list(value) if key in LISTS else value for key, value in asdict(self.source).items()}
        origin = {"layout": LAYOUT, "sha256_of_file": sha256_of(path), **chosen}
        digest = hashlib.sha256(json.dumps(origin).encode()).hexdigest()[:12]
        self.data_dir = prepare(self.home / digest, origin, lambda part: write_rows(self.source, part))

    def setup(self, stage: str) -> None:
        if not self.splits:
            self.fill()
            super().setup(stage)
            meta = verified_meta(self.data_dir)
            with reading(self.data_dir):
                self.tell(Reading.of_dict(meta["reading"]))

    def prepare_data(self) -> None:
        self.setup("prepare")

    def content(self) -> str:
        sums = sums_of(self.data_dir)
        newer = [VALUES.format(split) for split in SPLITS]  # not there when older checkpoints noted the hash
        return hash_of([{name: sums[name] for name in sums if name not in newer}])

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self.source.categorical)

    def check_columns(self, trained: Any) -> None:
        source = trained.get("source") if isinstance(trained, dict) else None
        for key in ("numerical", "categorical"):
            theirs: Any = source.get(key) if isinstance(source, dict) else None
            ours = list(getattr(self.source, key))
            if not isinstance(theirs, list) or not all(isinstance(name, str) for name in theirs):
                continue
            if theirs != ours and sorted(theirs) == sorted(ours):
                raise UserError(
                    f"datamodule.source.{key}=[{','.join(ours)}] is another order than that of the training; give "
                    f"[{','.join(theirs)}], or leave it out"
                )

    def values(self, split: str) -> Int64[np.ndarray, "values 3"]:
        return read_npy(self.data_dir / VALUES.format(split))

    def known_labels(self, split: str) -> Bool[np.ndarray, " rows"] | None:
        return read_npy(self.data_dir / KNOWN) if split == "test" else None


def write_rows(source: ClickColumns, folder: Path) -> dict[str, Any]:
    """Writes the file as a split binary directory; returns the report of what was read, changed and dropped."""
    rows, report = read_clicks(source)
    splits, spec = splits_of(source, rows, report), features_of(source)
    ids, numbers, hashes = ids_and_numbers(source, rows)
    labels = np.array(rows.labels)
    np.save(folder / KNOWN, labels[splits[TEST]] >= 0)
    labels = np.maximum(labels, 0).astype(np.uint8)
    for split, chosen in splits.items():
        files = spec.splits[split]
        labels[chosen].tofile(folder / files.label)
        numbers[chosen].tofile(folder / files.numerical)
        for column, (file, dtype) in enumerate(zip(files.ids, spec.dtypes, strict=True)):
            ids[chosen, column].astype(dtype).tofile(folder / file)
        np.save(folder / VALUES.format(split), counted(hashes[chosen]))
    spec.write(folder)
    report.notes += notes_of(source, hashes, ids)
    return {"reading": asdict(report.finish())}


def ids_and_numbers(
    source: ClickColumns, rows: Rows
) -> tuple[Int64[np.ndarray, "rows columns"], Float[np.ndarray, "rows numbers"], Int64[np.ndarray, "rows columns"]]:
    """Returns what the network takes of each row: ids and numbers; and the hashes that the ids come from."""
    hashes = np.array(rows.hashes, np.int64).reshape(-1, len(source.categorical))
    ids = np.where(hashes == NO_VALUE, 0, 1 + hashes % source.buckets)
    numbers = np.array(rows.numbers).reshape(-1, len(source.numerical))
    numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
    return ids, numbers.astype(features_of(source).number_dtype), hashes


def features_of(source: ClickColumns) -> FeatureSpec:
    """Returns the prepared folder, without folders for the splits."""
    spec = FeatureSpec.of([source.buckets + 1] * len(source.categorical), len(source.numerical))
    names = [table.name for table in spec.tables]
    splits = {
        split: SplitFiles(f"{split}_label.bin", f"{split}_numerical.bin", tuple(f"{split}_{name}" for name in names))
        for split in SPLITS
    }
    return replace(spec, splits=splits, number_dtype="float32" if source.form == 2 else "float16")


def notes_of(
    source: ClickColumns, hashes: Int64[np.ndarray, "rows columns"], ids: Int64[np.ndarray, "rows columns"]
) -> list[str]:
    """Returns how values share ids, and what an older form of the features means."""
    shares = []
    for name, column, column_ids in zip(source.categorical, hashes.T, ids.T, strict=True):
        values, first = np.unique(column, return_index=True)
        sharing = np.bincount(column_ids[first])[column_ids[first]] > 1
        shares.append(f"{name} {len(values):,} ({sharing.mean():.1%})")
    notes = [f"values by column, hashed to {source.buckets:,} ids (how many share one): {', '.join(shares)}"]
    if source.form == 1:
        notes.append("form 1, as the checkpoint was trained: 1 and 1.0 are two categories, numbers have 3 digits")
    return notes
