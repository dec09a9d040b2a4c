"""The values of categorical columns that a model was trained with, by their hashes, and those that are new to it."""

import numpy as np
from jaxtyping import Int64


def counted(hashes: Int64[np.ndarray, "rows columns"]) -> Int64[np.ndarray, "values 3"]:
    """Returns column, hash and number of rows of each value, ascending."""
    parts = []
    for number, column in enumerate(hashes.T):
        values, counts = np.unique(column, return_counts=True)
        parts.append(np.stack([np.full_like(values, number), values, counts], axis=1))
    return np.concatenate(parts)


def new_shares(
    values: Int64[np.ndarray, "values 3"], seen: Int64[np.ndarray, "seen 2"], columns: int
) -> list[tuple[int, float]]:
    """Returns how many values of each column are new, and in which share of the rows.

    Args:
        values: those of the rows, as `counted` returns them.
        seen: column and hash of each value of the training.
    """
    result = []
    for column in range(columns):
        of_column = values[values[:, 0] == column]
        is_new = ~np.isin(of_column[:, 1], seen[seen[:, 0] == column, 1])
        result.append((int(is_new.sum()), float(of_column[is_new, 2].sum() / max(1, of_column[:, 2].sum()))))
    return result
