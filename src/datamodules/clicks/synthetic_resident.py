"""Synthetic clicks generated on the training device: they measure throughput without files and loading."""

from collections.abc import Sequence
from typing import Any

from src.batches.clicks import ClickBatch, ClickLayout
from src.config.ranges import Count, Seed
from src.datamodules.clicks.criteo import ClickDataModule
from src.datamodules.clicks.synthetic import BayesMetrics, ClickDistribution, Rows, tables_of
from src.datamodules.resident import PoolLoader


class ResidentClicksDataModule(ClickDataModule):
    """Batches of the distribution of synthetic.py, from a pool that each rank generates with its own random numbers.

    Args:
        steps_per_epoch: optimiser steps in an epoch.
        pool_batches: different training batches of each rank.
        test_batches: evaluation batches of each rank, all different.
        cardinalities, hotness, max_rows: as for `tables_of`; the published tables if not given.
        num_numerical: numerical features of each row.
        data_seed: of the distribution and its samples.
        options: as for ClickDataModule.
    """

    def __init__(
        self,
        *,
        steps_per_epoch: Count,
        pool_batches: Count,
        test_batches: Count,
        cardinalities: Sequence[Rows] | None = None,
        hotness: Sequence[Count] | None = None,
        max_rows: Count | None = None,
        num_numerical: Count = 13,
        data_seed: Seed = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.steps_per_epoch = steps_per_epoch
        self.num_batches = {"train": pool_batches, "test": test_batches}
        self.layout = ClickLayout.of(tables_of(cardinalities, hotness, max_rows), num_numerical)
        self.distribution = ClickDistribution(self.layout, data_seed)
        self._pools: dict[tuple[str, int], list[ClickBatch]] = {}

    def setup(self, stage: str) -> None:
        device, (_, world) = self.target_device, self.rank_and_world
        self.splits = {
            "train": range(self.steps_per_epoch * self.accumulate * self.batch_size * world),
            "test": range(self.num_batches["test"] * self.test_batch_size * world),
        }
        metrics = BayesMetrics(device)
        for number in range(self.num_batches["test"] * world):
            metrics.add(self.distribution.sample(self.test_batch_size, number, test=True, device=device).logits)
        self.bayes_auc = metrics.compute()["bayes_auc"]

    def loader(self, split: str, /, *, train: bool = False, batch_size: int | None = None) -> PoolLoader[ClickBatch]:
        self.check_split(split)
        size = batch_size or self.test_batch_size
        if (split, size) not in self._pools:
            self._pools[split, size] = self._generate(split, size)
        pool = self._pools[split, size]
        return PoolLoader(pool, self.steps_per_epoch * self.accumulate if train else len(pool), size)

    def _generate(self, split: str, size: int) -> list[ClickBatch]:
        device, (rank, world) = self.target_device, self.rank_and_world
        pool = []
        for number in range(rank, self.num_batches[split] * world, world):
            sample = self.distribution.sample(size, number, test=split == "test", device=device)
            data = self.layout.encode(sample.labels, sample.numerical, self.distribution.table_major(sample.ids))
            pool.append(ClickBatch(data, self.layout, size))
        return pool
