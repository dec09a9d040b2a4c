"""Random clicks, in memory and as a split binary folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from src.batches.clicks import Clicks, EmbeddingTable
from src.datamodules.clicks.feature_spec import FeatureSpec

TABLES = (
    EmbeddingTable("cat_0.bin", 40_000),
    EmbeddingTable("cat_1.bin", 5, 3),
    EmbeddingTable("cat_2.bin", 300, 2),
    EmbeddingTable("cat_3.bin", 9),
)


@dataclass
class ClickRows:
    """The rows of a split, in the files' types."""

    spec: FeatureSpec
    labels: np.ndarray  # [rows]
    numerical: np.ndarray  # [rows, numerical]
    ids: list[np.ndarray]  # of each table, [rows, hotness]

    def write(self, folder: Path, split: str = "train") -> None:
        files = self.spec.splits[split]
        (folder / split).mkdir(parents=True, exist_ok=True)
        self.labels.tofile(folder / files.label)
        self.numerical.tofile(folder / files.numerical)
        for file, ids in zip(files.ids, self.ids, strict=True):
            ids.tofile(folder / file)
        self.spec.write(folder)

    def assert_equal(self, clicks: Clicks, begin: int, end: int) -> None:
        """Asserts that the clicks are the rows `begin` to `end`."""
        np.testing.assert_array_equal(clicks.labels.numpy(), self.labels[begin:end])
        np.testing.assert_array_equal(clicks.numerical.numpy(), self.numerical[begin:end])
        expected = [ids[begin:end].reshape(-1) for ids in self.ids]
        np.testing.assert_array_equal(clicks.ids.numpy(), np.concatenate(expected))


def click_rows(
    rows: int, tables: Sequence[EmbeddingTable] = TABLES, num_numerical: int = 2, seed: int = 0
) -> ClickRows:
    random = np.random.default_rng(seed)
    spec = FeatureSpec.of([table.cardinality for table in tables], num_numerical, [table.hotness for table in tables])
    return ClickRows(
        spec,
        random.integers(2, size=rows, dtype=np.uint8),
        random.normal(size=(rows, num_numerical)).astype(np.float16),
        [
            random.integers(table.cardinality, size=(rows, table.hotness)).astype(dtype)
            for table, dtype in zip(spec.tables, spec.dtypes, strict=True)
        ],
    )
