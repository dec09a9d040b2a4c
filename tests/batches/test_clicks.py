"""The layout of a batch of clicks: bytes, alignment, encoding and decoding."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from src.batches.clicks import NUMBER_DTYPES, ClickBatch, ClickLayout, EmbeddingTable, id_dtype
from src.datamodules.clicks.synthetic import PUBLISHED

TABLES = (
    EmbeddingTable("a", 40_000),
    EmbeddingTable("b", 5, 3),
    EmbeddingTable("c", 300, 2),
    EmbeddingTable("d", 70_000),
    EmbeddingTable("e", 9),
)


def parts(layout: ClickLayout, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = [torch.randint(table.cardinality, (rows * table.hotness,), generator=generator) for table in layout.tables]
    labels = torch.randint(2, (rows,), generator=generator).float()
    numerical = torch.randn(rows, layout.num_numerical, generator=generator).half()
    return labels, numerical, torch.cat(ids).int()


def test_the_published_tables_have_89_bytes_a_row() -> None:
    layout = ClickLayout.of([EmbeddingTable(f"cat_{i}.bin", size) for i, size in enumerate(PUBLISHED)])
    assert (sum(PUBLISHED), len(PUBLISHED)) == (32_709_138, 26)
    assert (layout.bytes_per_row, layout.num_bytes(65_536)) == (89, 5_832_704)
    assert [layout.dtypes.count(name) for name in ("int32", "int16", "int8")] == [9, 9, 8]


@pytest.mark.parametrize(
    ("cardinality", "dtype"),
    [(1, "int8"), (126, "int8"), (127, "int16"), (32766, "int16"), (32767, "int32"), (40_000_000, "int32")],
)
def test_the_type_is_the_smallest_whose_maximum_is_strictly_above(cardinality: int, dtype: str) -> None:
    assert id_dtype(cardinality) == dtype


@pytest.mark.parametrize("rows", [0, 1, 3, 64])
@pytest.mark.parametrize("numerical", [0, 1, 13])
@pytest.mark.parametrize("number_dtype", ["float16", "float32"])
def test_decoding_inverts_encoding(rows: int, numerical: int, number_dtype: str) -> None:
    layout = replace(ClickLayout.of(TABLES, numerical), number_dtype=number_dtype)
    labels, values, ids = parts(layout, rows)
    values = values.to(NUMBER_DTYPES[number_dtype]) / 3
    data = layout.encode(labels, values, ids)
    assert data.shape == (layout.num_bytes(rows),)
    clicks = ClickBatch(data, layout, rows).clicks()
    assert torch.equal(clicks.labels, labels)
    assert torch.equal(clicks.numerical, values)
    assert torch.equal(clicks.ids, ids)
    assert (clicks.labels.dtype, clicks.numerical.dtype, clicks.ids.dtype) == (
        torch.float32, NUMBER_DTYPES[number_dtype], torch.int32,
    )  # fmt: skip


def test_blocks_are_in_the_documented_order() -> None:
    """int32 tables, numericals, int16 tables, int8 tables, labels: the reader of files relies on it."""
    layout = ClickLayout.of(TABLES, 2)
    labels, values, ids = parts(layout, 3)
    a, b, c, d, e = (part.numpy() for part in ids.split([3, 9, 6, 3, 3]))
    blocks = [np.concatenate([a, d]), values.numpy(), c.astype("int16"), np.concatenate([b, e]).astype("int8")]
    expected = b"".join(block.tobytes() for block in [*blocks, labels.numpy().astype("uint8")])
    assert layout.encode(labels, values, ids).numpy().tobytes() == expected
    assert layout.bytes_per_row == 2 * 4 + 2 * 2 + 2 * 2 + 4 * 1 + 1


def test_ids_are_table_major() -> None:
    layout = ClickLayout.of([EmbeddingTable("a", 10), EmbeddingTable("b", 1000), EmbeddingTable("c", 100_000)], 1)
    ids = torch.tensor([[1, 2], [10, 20], [100, 200]], dtype=torch.int32)
    clicks = layout.decode(layout.encode(torch.zeros(2), torch.zeros(2, 1), ids.reshape(-1)))
    assert torch.equal(clicks.ids.view(3, 2), ids)


def test_to_copies_only_the_buffer_of_a_batch() -> None:
    layout = ClickLayout.of(TABLES, 2)
    batch = ClickBatch(layout.encode(*parts(layout, 2)), layout, 2)
    moved = batch.to("meta")
    assert (moved.data.device.type, moved.layout, moved.count) == ("meta", layout, 2)
    assert [isinstance(leaf, torch.Tensor) for leaf in tree_leaves(batch)] == [True, False, False]


def test_decoding_is_three_casts_and_a_concatenation() -> None:
    layout = ClickLayout.of(TABLES, 2)
    data = layout.encode(*parts(layout, 4))
    module = make_fx(lambda data: tuple(layout.decode(data)))(data)
    casts = [node for node in module.graph.nodes if node.target is torch.ops.aten._to_copy.default]
    joins = [node for node in module.graph.nodes if node.target is torch.ops.aten.cat.default]
    assert (len(casts), len(joins)) == (3, 1)
