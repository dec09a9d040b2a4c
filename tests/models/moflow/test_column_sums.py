"""The kernel in Triton's interpreter against torch's sums in float64."""

import pytest
import torch

from src.models.moflow.fast import column_sums as module
from src.models.moflow.fast.column_sums import column_sums


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "programs", "parts"),
    [
        ((2, 50, 40), 16, 2),  # two parts of 32 and of 18 rows, and three blocks of columns
        ((1, 50, 3), 1000, 4),  # as many parts as there are blocks of rows, the last one of two
        ((3, 5, 16), 1, 1),
    ],
)
def test_every_row_and_column_is_summed_once(
    shape: tuple[int, ...], programs: int, parts: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUMS", {**module.SUMS, "COLUMNS": 16})
    monkeypatch.setattr(module, "PROGRAMS", programs)
    values = torch.randn(shape).to(dtype)
    sums = column_sums(values)
    assert sums.shape == (shape[0], parts, shape[2])
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.sum(1), values.double().sum(1).float())
