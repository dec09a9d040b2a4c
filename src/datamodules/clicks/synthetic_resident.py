"""Synthetic clicks that are made on the training device and stay there: throughput without files and loading."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from src.batches.clicks import ClickBatch, ClickLayout
from src.datamodules.clicks.criteo import ClickDataModule
from src.datamodules.clicks.synthetic import Expectation, Law, tables_of
from src.datamodules.resident import OrderedLoader
from src.errors import UserError


class PoolLoader(OrderedLoader[ClickBatch]):
    """`steps` batches an epoch out of a pool on the device, which is gone through again and again."""

    def __init__(self, pool: list[ClickBatch], steps: int) -> None:
        super().__init__(torch.arange(steps), 1, shuffle=False, drop_last=False)
        self.pool = pool

    def begin(self, order: Int[Tensor, " batches"]) -> None:
        """The order is that of the pool."""

    def batch(self, step: int) -> ClickBatch:
        return self.pool[step % len(self.pool)]


class ResidentClicksDataModule(ClickDataModule):
    """The law of criteo_synthetic.py without files: every rank draws a pool of batches of its own.

    Args:
        steps_per_epoch: training batches that count as an epoch.
        pool_batches: different ones among them.
        test_batches: of each rank, all different.
        cardinalities, hotness, max_rows: as for `tables_of`; the published tables if not given.
        num_numerical: numericals of each row.
        data_seed: of the law and its draws.
        options: as for ClickDataModule.
    """

    def __init__(
        self,
        *,
        steps_per_epoch: int,
        pool_batches: int,
        test_batches: int,
        cardinalities: Sequence[int] | None = None,
        hotness: Sequence[int] | None = None,
        max_rows: int | None = None,
        num_numerical: int = 13,
        data_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if min(steps_per_epoch, pool_batches, test_batches) < 1:
            raise UserError("steps_per_epoch, pool_batches and test_batches are counts: give 1 or more of each")
        self.steps_per_epoch = steps_per_epoch
        self.num_batches = {"train": min(pool_batches, steps_per_epoch), "test": test_batches}
        self.layout = ClickLayout.of(tables_of(cardinalities, hotness, max_rows), num_numerical)
        self.law = Law(self.layout, data_seed)
        self._pools: dict[tuple[str, int], list[ClickBatch]] = {}

    def setup(self, stage: str) -> None:
        device, (_, world) = self.target_device, self.rank_and_world
        self.splits = {
            "train": range(self.steps_per_epoch * self.batch_size * world),
            "test": range(self.num_batches["test"] * self.test_batch_size * world),
        }
        expected = Expectation(device)
        for number in range(self.num_batches["test"] * world):
            expected.add(self.law.sample(self.test_batch_size, number, test=True, device=device).logits)
        self.bayes_auc = expected.figures()["bayes_auc"]

    def loader(self, split: str, *, train: bool = False, batch_size: int | None = None) -> PoolLoader:
        """Batches of a split for this rank, on its device. Raises UserError for a split that is not there."""
        self._check_split(split)
        size = batch_size or self.test_batch_size
        if (split, size) not in self._pools:
            self._pools[split, size] = self._drawn(split, size)
        pool = self._pools[split, size]
        return PoolLoader(pool, self.steps_per_epoch if train else len(pool))

    def _drawn(self, split: str, size: int) -> list[ClickBatch]:
        device, (rank, world) = self.target_device, self.rank_and_world
        pool = []
        for number in range(rank, self.num_batches[split] * world, world):
            sample = self.law.sample(size, number, test=split == "test", device=device)
            data = self.layout.encode(sample.labels, sample.numerical, self.law.table_major(sample.ids))
            pool.append(ClickBatch(data, self.layout, size))
        return pool
