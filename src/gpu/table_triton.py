# type: ignore  (the type checker reads Triton as Python)
"""What kernels read of a table of tensors, one column each (see src/training/tables.py)."""

import triton
import triton.language as tl


@triton.jit
def column_of(table, TENSORS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Returns this program's column of a table with TENSORS addresses, and its offsets within these tensors."""
    block = tl.program_id(0).to(tl.int64)
    begins = tl.load(table + (TENSORS + 1) * ROWS + tl.arange(0, ROWS))
    column = table + tl.sum((begins <= block).to(tl.int32), 0) - 1
    offset = (block - tl.load(column + (TENSORS + 1) * ROWS)) * BLOCK + tl.arange(0, BLOCK)
    return column, offset


@triton.jit
def pointers(entry, offset, like: tl.constexpr):
    """Returns pointers to elements, of dtype `like`, of the tensor whose address is at `entry`."""
    return tl.multiple_of(tl.load(entry).to(tl.pointer_type(like)), 16) + offset


@triton.jit
def store_copies(entry, offset, values, mask, copies):
    """Stores values to the copy whose address is at `entry`, if that is not 0, in the dtype of `copies`."""
    if copies is not None:
        kind: tl.constexpr = copies.dtype.element_ty
        tl.store(pointers(entry, offset, kind), values.to(kind), mask=mask & (tl.load(entry) != 0))
