"""README's picture has every case that was timed in turn with other code, none chosen."""

from pathlib import Path

import pytest

from src.report.in_turn import Comparison, read_comparison
from src.report.ratios import ratios_picture, rows
from tests.support import ROOT


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    return [read_comparison(file) for file in (ROOT / "docs" / "results" / "beside").glob("*.json")]


def test_every_case_has_a_row_the_greatest_first(comparisons: list[Comparison]) -> None:
    """The ratio is that to the fastest other side: the least of the case."""
    ratios = [
        min(side.ours_over_it.median for side in comparison.sides if side.ours_over_it) for comparison in comparisons
    ]
    assert [row.ratio.median for row in rows(comparisons)] == sorted(ratios, reverse=True)


@pytest.mark.slow
def test_the_picture_prints_every_ratio_beside_its_case(comparisons: list[Comparison], tmp_path: Path) -> None:
    ratios_picture(comparisons, tmp_path / "ratios.png")
    drawn = (tmp_path / "ratios.svg").read_text()
    for row in rows(comparisons):
        assert f">{row.ratio.median:.2f}<" in drawn and row.words in drawn
