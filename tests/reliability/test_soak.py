"""Long runs do not grow; `soak.py` says how, and trains for longer."""

from pathlib import Path
from typing import Any

import pytest

from tests.reliability.soak import MIB, judge, soak
from tests.reliability.watching import READINGS


def readings(**slopes: float) -> list[dict[str, Any]]:
    """Returns readings of a run whose figures grow by so much from one to the next."""
    figures = {"memory": 300.0 * MIB, "threads": 4.0, "descriptors": 9.0, "rows": 0.0}
    return [{name: base + i * slopes.get(name, 0) for name, base in figures.items()} for i in range(READINGS)]


def test_growth_is_told_from_what_is_kept() -> None:
    assert judge(readings()) == ""
    assert judge(readings(memory=0.13 * MIB, rows=50)) == ""  # the history of the record
    assert judge(readings(memory=0.13 * MIB)).startswith("memory by 10.4 MiB (limit 8.0)")
    assert judge(readings(descriptors=1 / 81)) == ""  # a checkpoint that is being written
    assert judge(readings(threads=0.1)) == "threads by 8" and judge(readings(descriptors=1)) == "descriptors by 80"


@pytest.mark.slow
def test_a_hundred_epochs_do_not_grow(tmp_path: Path) -> None:
    rows = soak("dlrm", tmp_path, 100, None)
    assert len(rows) > 90 and judge(rows) == ""
