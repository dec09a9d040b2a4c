"""Random clicks for tests."""

from collections.abc import Sequence

import torch

from src.batches.clicks import Clicks, EmbeddingTable

TABLES = (EmbeddingTable("cat_0.bin", 11), EmbeddingTable("cat_1.bin", 3, hotness=4), EmbeddingTable("cat_2.bin", 40))
PUBLISHED = [7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4,
             968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35]  # fmt: skip


def random_clicks(tables: Sequence[EmbeddingTable], batch: int, num_numerical: int = 13, seed: int = 0) -> Clicks:
    """Returns random clicks with few distinct ids, so that ids repeat."""
    generator = torch.Generator().manual_seed(seed)
    ids = [
        torch.randint(min(table.cardinality, 5), (batch * table.hotness,), generator=generator, dtype=torch.int32)
        for table in tables
    ]
    labels = torch.randint(2, (batch,), generator=generator).float()
    numerical = torch.rand(batch, num_numerical, generator=generator).half()
    return Clicks(labels, numerical, torch.cat(ids))
