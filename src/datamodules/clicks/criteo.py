"""Criteo's click logs, or others in split binary format, as batches (`src.batches.clicks.ClickBatch`)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from src.batches.clicks import ClickLayout, EmbeddingTable
from src.config.ranges import Count, Seed
from src.datamodules.base import SplitDataModule
from src.datamodules.clicks.check import check_values, expect_checked
from src.datamodules.clicks.feature_spec import FILE, SPLITS, FeatureSpec
from src.datamodules.clicks.prepare import prepare_criteo
from src.datamodules.clicks.split_binary import SplitBinary, SplitLoader
from src.datamodules.fingerprint import CONTENT, hash_of, of_large_files
from src.errors import UserError


class ClickDataModule(SplitDataModule):
    """Clicks with one evaluation split, `test`, as published.

    After `setup`: `layout` with `tables` and `num_numerical`, `splits` (rows of `train` and `test`), `bayes_auc` (the
    expected AUC of the best possible scores on `test`, None if unknown).

    Args:
        name, batch_size, seed, test_batch_size, predict: as for SplitDataModule.
    """

    val_split = test_split = "test"
    splits: dict[str, range]

    def __init__(
        self, name: str, batch_size: Count, seed: Seed, test_batch_size: Count | None = None, predict: str = "test"
    ) -> None:
        super().__init__(name, batch_size, seed, predict, test_batch_size)
        self.layout = ClickLayout(0, (), ())
        self.bayes_auc: float | None = None

    def known_labels(self, split: str) -> Bool[np.ndarray, " rows"] | None:
        """Returns which rows of a split have a label; None where all have."""
        return None

    def check_columns(self, trained: Any) -> None:
        """Raises UserError where a checkpoint's config of its data has the same columns in another order."""

    def values(self, split: str) -> Int64[np.ndarray, "values 3"] | None:
        """Returns column, hash and rows of each category of a split; None where its values are not hashed."""
        return None

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the categorical columns."""
        return tuple(table.name for table in self.tables)

    @property
    def tables(self) -> tuple[EmbeddingTable, ...]:
        return self.layout.tables

    @property
    def num_numerical(self) -> int:
        return self.layout.num_numerical


class CriteoDataModule(ClickDataModule):
    """A folder in split binary format, read during training.

    Args:
        data_dir: the folder, with a feature_spec.yaml; NVIDIA's prepared folders are read unchanged.
        raw: the raw log to prepare the folder from; None if it is prepared already.
        prepare: prepares the folder, given `raw` and `data_dir` (`_partial_: true` in the config).
        shuffle_batches: take the global batches of an epoch in random order; their rows stay as prepared.
        check: check every id and label once, and then that what is read is as it was checked.
        threads: reading threads; each reads one batch at a time.
        prefetch: batches read ahead.
        options: as for ClickDataModule.
    """

    def __init__(
        self,
        *,
        data_dir: str,
        raw: str | None = None,
        prepare: Callable[[Path, Path], Any] = prepare_criteo,
        shuffle_batches: bool = False,
        check: bool = True,
        threads: Count = 4,
        prefetch: Count = 8,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.data_dir, self.raw, self.prepare = Path(data_dir), raw, prepare
        self.shuffle_batches, self.check = shuffle_batches, check
        self.threads, self.prefetch = threads, prefetch
        self._splits: dict[str, SplitBinary] = {}
        self._sums: dict[str, Any] = {}

    def prepare_data(self) -> None:
        self.fill()
        self.setup("prepare")
        if self.check:
            check_values(self.data_dir, self._splits, self._sums)

    def fill(self) -> None:
        """Prepares the folder if necessary. Raises UserError if there is no raw log to prepare it from."""
        if self.raw is not None:
            self.prepare(Path(self.raw), self.data_dir)
        elif not (self.data_dir / FILE).exists():
            raise UserError(
                f"{self.data_dir} has no {FILE}: prepare it with `prepare.py datamodule=criteo datamodule.raw=FOLDER`"
                f", or give a prepared folder as datamodule.data_dir (datamodule=criteo_synthetic generates its own)"
            )

    def setup(self, stage: str) -> None:
        if self._splits:
            return
        spec = FeatureSpec.load(self.data_dir)
        self.layout = spec.layout
        self._splits = {name: SplitBinary(self.data_dir, spec, name) for name in SPLITS}
        self.splits = {name: range(split.num_rows) for name, split in self._splits.items()}
        if self.check:
            expect_checked(self.data_dir, self._splits)
        self.bayes_auc = spec.metadata.get("bayes_auc")
        sums = spec.metadata.get("sha256")  # a folder that others have prepared has none
        if isinstance(sums, dict):
            self._sums = {file: sums.get(file) for name in SPLITS for file in spec.bytes_per_row(name)}

    def fingerprint(self) -> dict[str, Any]:
        return {split: len(rows) for split, rows in self.splits.items()} | {CONTENT: self.content()}

    def content(self) -> str:
        """Returns a hash of the prepared folder: of its checksums, or of parts of its files where it has none."""
        if self._sums:
            return hash_of([self._sums])
        spec = FeatureSpec.load(self.data_dir)
        return of_large_files(self.data_dir, [file for name in SPLITS for file in spec.bytes_per_row(name)])

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> SplitLoader:
        self.check_split(split)
        return SplitLoader(
            self._splits[split],
            batch_size or self.test_batch_size,
            drop_last=train,
            shuffle=train and self.shuffle_batches,
            device=self.target_device,
            threads=self.threads,
            prefetch=self.prefetch,
            **self.order,
        )


class SyntheticClicksDataModule(CriteoDataModule):
    """Synthetic clicks (synthetic.py) in a folder that is generated if necessary.

    Args:
        generate: fills the folder, given `data_dir` (`_partial_: true` in the config).
        options: as for CriteoDataModule.
    """

    def __init__(self, *, generate: Callable[[Path], None], **options: Any) -> None:
        super().__init__(**options)
        self.generate = generate

    def fill(self) -> None:
        self.generate(self.data_dir)
