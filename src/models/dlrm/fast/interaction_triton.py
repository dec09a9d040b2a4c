# type: ignore  (the type checker reads Triton as Python)
"""Dot products of all pairs of a sample's vectors; each program holds one sample's vectors in registers."""

import triton
import triton.language as tl


@triton.jit
def _vectors(
    dense, sparse, rows, places, ids, samples, sample, row, column, last,
    TABLES: tl.constexpr, DIM: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Returns [ROWS, WIDTH]: the dense vector, the tables' vectors, the one at `last` if any, zeros; see `dot`."""
    is_column, is_table = (column < DIM)[None, :], (row >= 1) & (row <= TABLES)
    if rows is not None:
        begins = tl.load(places + row - 1, mask=is_table, other=-1)
        is_row = is_table & (begins >= 0)
        number = tl.load(ids + (row - 1) * samples.to(tl.int64) + sample, mask=is_row, other=0)
    if sparse is None:
        begin = tl.multiple_of(begins.to(tl.pointer_type(rows.dtype.element_ty)), 16) + number.to(tl.int64) * DIM
    else:
        begin = sparse + sample * (TABLES * DIM) + (row - 1) * DIM
        if rows is not None:
            of_rows = rows + (begins + number) * DIM
            begin = tl.where(is_row, of_rows.to(tl.int64), begin.to(tl.int64))
            begin = tl.multiple_of(begin.to(tl.pointer_type(rows.dtype.element_ty)), 16)
    begin_of_other, is_other = dense + sample * DIM + row * 0, row == 0
    if last is not None:
        begin_of_other, is_other = tl.where(is_other, begin_of_other, last), is_other | (row == TABLES + 1)
    if last is not None and begin.dtype.element_ty == dense.dtype.element_ty:
        begin, is_vector = tl.where(is_other, begin_of_other, begin), row <= TABLES + 1
        v = tl.load(begin[:, None] + column[None, :], mask=is_vector[:, None] & is_column, other=0.0)
    else:
        v = tl.load(begin[:, None] + column[None, :], mask=is_table[:, None] & is_column, other=0.0)
        mask = is_other[:, None] & is_column
        others = tl.load(begin_of_other[:, None] + column[None, :], mask=mask, other=0.0)
        v = tl.where(is_other[:, None], others, v.to(dense.dtype.element_ty))
    return v.to(tl.float32) if UPCAST else v


@triton.jit
def _larger(a, b):
    """Returns NaN if either is NaN; Triton's interpreter does not."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def dot(
    dense, sparse, rows, places, ids, out, samples,
    TABLES: tl.constexpr, DIM: tl.constexpr, FEATURES: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Writes `out` [samples, FEATURES]: the dense vector, the strictly lower triangle of V V^T row by row, zeros.

    The tables' vectors are `sparse` [samples, TABLES, DIM]; or, without it, rows `ids` [TABLES, samples] of tables at
    the addresses `places`, and `rows` is any of the tables, for their dtype. With both, those of a table that begins at
    row `places[table]` of `rows` are read there; -1 for other tables.
    """
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    sample = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # the last ones first, as in `mlp_triton`
    v = _vectors(dense, sparse, rows, places, ids, samples, sample, row, column, None, TABLES, DIM, UPCAST)
    products = tl.dot(v, tl.trans(v), input_precision=PRECISION)
    begin = out + sample * FEATURES
    i, j = row[:, None], row[None, :]
    triangle = DIM + i * (i - 1) // 2 + j
    tl.store(begin + triangle, products.to(out.dtype.element_ty), mask=(j < i) & (i <= TABLES))
    tl.store(begin + column, tl.load(dense + sample * DIM + column, mask=column < DIM, other=0.0), mask=column < DIM)
    last: tl.constexpr = DIM + TABLES * (TABLES + 1) // 2
    tl.store(begin + last + row, tl.zeros([ROWS], out.dtype.element_ty), mask=row < FEATURES - last)


@triton.jit
def dot_backward(
    dense, sparse, rows, places, ids, grad, grad_dense, grad_sparse, targets, overflow, samples,
    SPREAD: tl.constexpr, TABLES: tl.constexpr, DIM: tl.constexpr, FEATURES: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Writes `grad_sparse` [TABLES, samples, DIM]; sets `overflow` to 1 if a gradient is not finite in its dtype.

    The products' gradient is a symmetric matrix with zeros on its diagonal, times V.
    If SPREAD, table t's part begins `targets[t]` elements after `grad_sparse`, maybe on another GPU.
    """
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    sample = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)  # the last ones first, as in `mlp_triton`
    begin, is_column = grad + sample * FEATURES, (column < DIM)[None, :]
    i, j = tl.maximum(row[:, None], row[None, :]), tl.minimum(row[:, None], row[None, :])
    symmetric = tl.load(begin + DIM + i * (i - 1) // 2 + j, mask=(j < i) & (i <= TABLES), other=0.0)
    if UPCAST:
        symmetric = symmetric.to(tl.float32)
    # The features begin with the dense vector itself. Its gradient from there is added by the product, as one more
    # vector with the factor 1, which is exact but in TF32. If it is infinite, all are NaN, and `overflow` is set.
    if TABLES + 1 < ROWS and grad.dtype.element_ty != tl.float32:
        last = begin
        symmetric = tl.where((row[:, None] == 0) & (row[None, :] == TABLES + 1), 1.0, symmetric)
    else:
        last = None
    is_table = (row >= 1) & (row <= TABLES)
    if SPREAD:
        begin_of_table = tl.multiple_of(tl.load(targets + row - 1, mask=is_table, other=0), [16])
        table = begin_of_table + sample * DIM
    else:
        table = ((row - 1) * samples.to(tl.int64) + sample) * DIM
    v = _vectors(dense, sparse, rows, places, ids, samples, sample, row, column, last, TABLES, DIM, UPCAST)
    if last is None:
        direct = tl.load(begin + column[None, :] + row[:, None] * 0, mask=(row[:, None] == 0) & is_column, other=0.0)
        gradient = tl.dot(symmetric, v, direct.to(tl.float32), input_precision=PRECISION)
    else:
        gradient = tl.dot(symmetric, v, input_precision=PRECISION)
    largest = tl.reduce(tl.reduce(tl.abs(gradient), 1, _larger), 0, _larger)
    if not largest <= LARGEST:  # true for NaN, too
        tl.store(overflow, 1.0)
    gradient = gradient.to(grad_sparse.dtype.element_ty)
    tl.store(grad_sparse + table[:, None] + column[None, :], gradient, mask=is_table[:, None] & is_column)
    offset = sample * DIM + column[None, :] + row[:, None] * 0
    tl.store(grad_dense + offset, gradient, mask=(row[:, None] == 0) & is_column)
