"""Batches of clicks for click-through rate models; one batch is one buffer of bytes.

A batch is copied to the GPU as one uint8 buffer with the types of the files (89 bytes a row for the published tables),
and decoded there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int32, Shaped, UInt8
from torch import Tensor
from torch.nn import functional as F

DTYPES = {"int32": torch.int32, "int16": torch.int16, "int8": torch.int8}  # in the order of their blocks
NUMBER_DTYPES = {"float16": torch.float16, "float32": torch.float32}


class EmbeddingTable(NamedTuple):
    """A categorical feature and its embedding table: ids 0 .. cardinality - 1, `hotness` ids in each row."""

    name: str
    cardinality: int
    hotness: int = 1


class Clicks(NamedTuple):
    """A decoded batch.

    `ids` is table-major: the first table's [batch, hotness] flattened, then the second's, and so on. With one id a row
    everywhere, `ids.view(num_tables, batch)`.
    """

    labels: Float[Tensor, " batch"]  # 0 or 1
    numerical: Float[Tensor, "batch numerical"]  # float16 or float32, as the layout has it
    ids: Int32[Tensor, " ids"]

    def padded(self, rows: int, tables: Sequence[EmbeddingTable]) -> "Clicks":
        """Pads the batch with zeros to `rows` rows."""
        more = rows - len(self.labels)
        parts = self.ids.split([len(self.labels) * table.hotness for table in tables])
        ids = torch.cat([F.pad(part, (0, more * table.hotness)) for part, table in zip(parts, tables, strict=True)])
        return Clicks(F.pad(self.labels, (0, more)), F.pad(self.numerical, (0, 0, 0, more)), ids)


class Block(NamedTuple):
    """Contiguous numbers of one type: the ids of `tables`, or, without tables, the numericals or the labels."""

    dtype: torch.dtype
    width: int  # numbers of each row
    tables: tuple[int, ...] = ()


def id_dtype(cardinality: int) -> str:
    """Returns the smallest of int8, int16 and int32 with a maximum above `cardinality`, as NVIDIA stores ids."""
    return next((name for name in ("int8", "int16") if cardinality < torch.iinfo(DTYPES[name]).max), "int32")


@dataclass(frozen=True)
class ClickLayout:
    """The layout of a batch's rows in its buffer.

    The blocks in order: the int32 tables, each [batch, hotness]; the numericals, [batch, num_numerical]; the int16
    tables; the int8 tables; the labels, one byte each. This aligns every block for any batch size.
    """

    num_numerical: int
    tables: tuple[EmbeddingTable, ...]
    dtypes: tuple[str, ...]  # of each table's ids: int8, int16 or int32
    number_dtype: str = "float16"  # of the numericals: float16, as published, or float32

    @classmethod
    def of(cls, tables: Sequence[EmbeddingTable], num_numerical: int = 13) -> "ClickLayout":
        """Returns the layout with the smallest type for each table."""
        return cls(num_numerical, tuple(tables), tuple(id_dtype(table.cardinality) for table in tables))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in the order of the buffer: the second has the numericals, the last one the labels."""
        ids = []
        for name, dtype in DTYPES.items():
            chosen = tuple(i for i, table_dtype in enumerate(self.dtypes) if table_dtype == name)
            ids.append(Block(dtype, sum(self.tables[i].hotness for i in chosen), chosen))
        numericals = Block(NUMBER_DTYPES[self.number_dtype], self.num_numerical)
        return ids[0], numericals, ids[1], ids[2], Block(torch.uint8, 1)

    @cached_property
    def bytes_per_row(self) -> int:
        return sum(block.width * block.dtype.itemsize for block in self.blocks)

    @property
    def ids_per_row(self) -> int:
        return sum(table.hotness for table in self.tables)

    def num_bytes(self, rows: int) -> int:
        return rows * self.bytes_per_row

    def encode(
        self,
        labels: Shaped[Tensor, " batch"],
        numerical: Float[Tensor, "batch numerical"],
        ids: Int32[Tensor, " ids"],
    ) -> UInt8[Tensor, " bytes"]:
        """Returns the buffer of a batch, on the device of the arguments; the inverse of `decode`."""
        rows = len(labels)
        per_table = ids.split([rows * table.hotness for table in self.tables])
        parts: list[Tensor] = []
        for block in self.blocks:
            if block.tables:
                parts.append(torch.cat([per_table[i] for i in block.tables]).to(block.dtype))
            elif block.dtype.is_floating_point:
                parts.append(numerical.to(block.dtype).reshape(-1))
            elif block.dtype == torch.uint8:
                parts.append(labels.to(torch.uint8))
        return torch.cat([part.view(torch.uint8) for part in parts])

    def decode(self, data: UInt8[Tensor, " bytes"]) -> Clicks:
        """Decodes a buffer with three casts and one concatenation, without synchronisation."""
        rows, begin = len(data) // self.bytes_per_row, 0
        numbers = []
        for block in self.blocks:
            end = begin + rows * block.width * block.dtype.itemsize
            numbers.append(data[begin:end].view(block.dtype))
            begin = end
        per_table: dict[int, Tensor] = {}
        for block, values in zip(self.blocks, numbers, strict=True):
            sizes = [rows * self.tables[i].hotness for i in block.tables]
            if sizes:
                per_table |= zip(block.tables, values.to(torch.int32).split(sizes), strict=True)
        ids = torch.cat([per_table[i] for i in range(len(self.tables))])
        return Clicks(numbers[-1].float(), numbers[1].view(rows, self.num_numerical), ids)


class ClickBatch(NamedTuple):
    """A buffer of `count` rows, on the host or on the device."""

    data: UInt8[Tensor, " bytes"]
    layout: ClickLayout
    count: int

    def clicks(self) -> Clicks:
        return self.layout.decode(self.data)

    def to(self, device: torch.device | str) -> "ClickBatch":
        """Returns the batch on another device; the copy to a GPU is asynchronous."""
        return self._replace(data=self.data.to(device, non_blocking=torch.device(device).type == "cuda"))
