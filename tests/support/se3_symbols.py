"""Wigner 3j symbols of e3nn 0.3.3, the version of NVIDIA's code: writes and reads `symbols_e3nn_0_3_3.csv`.

For every (J, degree in, degree out) up to degree 5, that version's limit, the file has the index and the value of the
first entry of greatest magnitude. It was written from the root of the repository with

    pip install --no-deps --target OLD e3nn==0.3.3
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 PYTHONPATH=OLD python -m tests.support.se3_symbols

(the variable because that version reads its constants with a plain torch.load).
"""

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import e3nn
import torch
from e3nn import o3
from torch import Tensor

Symbols = Callable[[int, int, int], Tensor]  # J, degree in, degree out -> [2 J + 1, 2 d_in + 1, 2 d_out + 1]

TABLE = Path(__file__).with_name("symbols_e3nn_0_3_3.csv")
COLUMNS = ("j", "d_in", "d_out", "index_j", "index_in", "index_out", "value")
MAX_DEGREE = 5


def installed(j: int, d_in: int, d_out: int) -> Tensor:
    """Returns the installed e3nn's symbol in float64."""
    return o3.wigner_3j(j, d_in, d_out, dtype=torch.float64)


@cache
def table() -> dict[tuple[int, ...], tuple[tuple[int, ...], float]]:
    """Returns {(J, degree in, degree out): (index, value)} from the file."""
    with TABLE.open(newline="") as file:
        rows = [[row[name] for name in COLUMNS] for row in csv.DictReader(file)]
    return {tuple(map(int, row[:3])): (tuple(map(int, row[3:6])), float(row[6])) for row in rows}


@cache
def of_e3nn_0_3_3(j: int, d_in: int, d_out: int) -> Tensor:
    """Returns the symbol of e3nn 0.3.3 in float64: rotation invariance fixes it up to a factor, found in the table."""
    index, value = table()[j, d_in, d_out]
    symbol = installed(j, d_in, d_out)
    return symbol * (value / symbol[index])


def write_table() -> None:
    if e3nn.__version__ != "0.3.3":
        raise SystemExit(f"found e3nn {e3nn.__version__}: put 0.3.3 first on PYTHONPATH")
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for d_in in range(MAX_DEGREE + 1):
            for d_out in range(MAX_DEGREE + 1):
                for j in range(abs(d_in - d_out), d_in + d_out + 1):
                    symbol = installed(j, d_in, d_out)
                    greatest = symbol.abs() > symbol.abs().max() - 1e-12
                    index = greatest.nonzero()[0].tolist()
                    writer.writerow([j, d_in, d_out, *index, repr(symbol[tuple(index)].item())])


if __name__ == "__main__":
    write_table()
