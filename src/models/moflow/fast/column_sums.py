"""Sums of columns of large matrices, which are biases' gradients."""

import torch
from jaxtyping import Float
from torch import Tensor

from src.gpu.triton_helpers import launch
from src.models.moflow.fast import column_sums_triton as kernels

SUMS = {"ROWS": 16, "COLUMNS": 256, "num_warps": 4}  # four loads of 16 bytes of each thread are under way
PROGRAMS = 2112  # about: 16 for each multiprocessor of an H200


def column_sums(values: Float[Tensor, "groups rows columns"]) -> Float[Tensor, "groups parts columns"]:
    """Returns sums of a contiguous tensor's columns in float32, of parts of the rows, which `.sum(1)` adds."""
    groups, rows, columns = values.shape
    across = -(-columns // SUMS["COLUMNS"])
    parts = max(1, min(PROGRAMS // (groups * across), -(-rows // SUMS["ROWS"])))
    rows_each = SUMS["ROWS"] * -(-rows // (SUMS["ROWS"] * parts))
    parts = -(-rows // rows_each)
    partials = values.new_empty(groups, parts, columns, dtype=torch.float32)
    grid = (groups * parts * across,)
    launch(kernels.column_sums, grid, values, partials, rows, rows_each, columns, **SUMS)
    return partials
