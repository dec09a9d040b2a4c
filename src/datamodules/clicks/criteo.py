"""Criteo's click logs, or any others in split binary form, as batches (`src.batches.clicks.ClickBatch`)."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from src.batches.clicks import ClickLayout, Table
from src.datamodules.base import DataModule, Metered
from src.datamodules.clicks.check import check_values
from src.datamodules.clicks.feature_spec import FILE, SPLITS, FeatureSpec
from src.datamodules.clicks.prepare import prepare_criteo
from src.datamodules.clicks.split_binary import SplitBinary, SplitLoader
from src.datamodules.resident import OrderedLoader
from src.errors import UserError


class ClickDataModule(DataModule):
    """Clicks with one evaluation set, the split `test`, as published.

    After `setup`: `layout` with `tables` and `num_numerical`, `splits` (rows of `train` and `test`), `bayes_auc` (what
    the best possible scores of `test` are expected to reach, None where nobody knows it).

    Args:
        name: as records call the data set.
        batch_size: rows of each rank and step.
        seed: of the order of the training batches.
        test_batch_size: rows of each rank in a batch of an evaluation; as in training if not given.
        predict: the split that `predict_dataloader` goes over.
    """

    def __init__(
        self, name: str, batch_size: int, seed: int, test_batch_size: int | None = None, predict: str = "test"
    ) -> None:
        super().__init__(name)
        self.batch_size, self.seed, self.predict = batch_size, seed, predict
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        if self.test_batch_size < 1:
            raise UserError(f"datamodule.test_batch_size={test_batch_size} tests nothing; give 1 or more")
        self.layout = ClickLayout(0, (), ())
        self.splits: dict[str, range] = {}
        self.bayes_auc: float | None = None

    @abstractmethod
    def loader(self, split: str, *, train: bool = False, batch_size: int | None = None) -> OrderedLoader[Any]:
        """Batches of a split for this rank; `train` leaves an incomplete one at the end out."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.layout.tables

    @property
    def num_numerical(self) -> int:
        return self.layout.num_numerical

    def train_dataloader(self) -> Metered:
        return self.metered(self.loader("train", train=True, batch_size=self.batch_size))

    def val_dataloader(self) -> OrderedLoader[Any]:
        return self.loader("test")

    def test_dataloader(self) -> OrderedLoader[Any]:
        return self.loader("test")

    def predict_dataloader(self) -> OrderedLoader[Any]:
        return self.loader(self.predict)

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.splits)}")


class CriteoDataModule(ClickDataModule):
    """A folder in split binary form, read while training goes on.

    Args:
        data_dir: the folder, with feature_spec.yaml in it; NVIDIA's own are read as they are.
        raw: the raw log that it is prepared from; None where it has been prepared.
        prepare: does that, given `raw` and `data_dir`, with progress (`_partial_: true` in the config).
        shuffle_batches: take the global batches of an epoch in random order; their rows stay as prepared.
        check: look once at every id and label.
        threads: that read, one batch each.
        prefetch: batches that are read ahead.
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
        threads: int = 4,
        prefetch: int = 8,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.data_dir, self.raw, self.prepare = Path(data_dir), raw, prepare
        self.shuffle_batches, self.check = shuffle_batches, check
        if min(threads, prefetch) < 1:
            raise UserError(
                f"datamodule.threads={threads} and prefetch={prefetch} read nothing; give 1 or more of each"
            )
        self.threads, self.prefetch = threads, prefetch
        self._splits: dict[str, SplitBinary] = {}

    def prepare_data(self) -> None:
        self.fill()
        self.setup("prepare")
        if self.check:
            check_values(self.data_dir, self._splits)

    def fill(self) -> None:
        """Makes the folder where it is not there yet. Raises UserError where there is nothing to make it from."""
        if self.raw is not None:
            self.prepare(Path(self.raw), self.data_dir)
        elif not (self.data_dir / FILE).exists():
            raise UserError(
                f"{self.data_dir} holds no {FILE}: prepare it with `prepare.py datamodule=criteo datamodule.raw=FOLDER`"
                f", or give a prepared folder as datamodule.data_dir (datamodule=criteo_synthetic makes its own)"
            )

    def setup(self, stage: str) -> None:
        if self._splits:
            return
        spec = FeatureSpec.load(self.data_dir)
        self.layout = spec.layout
        self._splits = {name: SplitBinary(self.data_dir, spec, name) for name in SPLITS}
        self.splits = {name: range(split.num_rows) for name, split in self._splits.items()}
        self.bayes_auc = spec.metadata.get("bayes_auc")

    def loader(self, split: str, *, train: bool = False, batch_size: int | None = None) -> SplitLoader:
        """Batches of a split for this rank, on its device. Raises UserError for a split that is not there."""
        self._check_split(split)
        rank, world_size = self.rank_and_world
        return SplitLoader(
            self._splits[split],
            batch_size or self.test_batch_size,
            drop_last=train,
            shuffle=train and self.shuffle_batches,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            device=self.target_device,
            threads=self.threads,
            prefetch=self.prefetch,
        )


class SyntheticClicksDataModule(CriteoDataModule):
    """Synthetic clicks (criteo_synthetic.py) in a folder that is filled where it is not there yet.

    Args:
        generate: does that, given `data_dir` (`_partial_: true` in the config).
        options: as for CriteoDataModule.
    """

    def __init__(self, *, generate: Callable[[Path], None], **options: Any) -> None:
        super().__init__(**options)
        self.generate = generate

    def fill(self) -> None:
        self.generate(self.data_dir)
