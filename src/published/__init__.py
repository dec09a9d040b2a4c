"""Published result rows as data: each figure as printed, with its source and, where it is wrong, the correction.

`rows(model="dlrm", kind="train")` are the published rows of a model, `beside(case, kind="train")` those to print beside
a record, the nearest first; `row.figure("p_core")` is the figure as printed, `row.best("p_core")` the corrected one.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from src.published.row import FIGURES, Correction, FinalMetric, PublishedRow
from src.published.tables import read

__all__ = ["FIGURES", "Correction", "FinalMetric", "PublishedRow", "beside", "rows"]

FOLDER = Path(__file__).parent


@cache
def _every_row() -> tuple[PublishedRow, ...]:
    found = [row for path in sorted(FOLDER.glob("*.yaml")) for row in read(path)]
    return tuple(sorted(found, key=lambda row: row.measured))  # stable: the files' order within each


def rows(model: str | None = None, kind: str | None = None) -> list[PublishedRow]:
    """The published rows of a model and a kind ('train' or 'predict'); None takes all of them.

    Publications come in the order of the files, measured references after them. Raises UserError that names the file
    and the row of a mistake in the data.
    """
    return [row for row in _every_row() if model in (None, row.model) and kind in (None, row.kind)]


def beside(case: Mapping[str, Any], kind: str) -> list[PublishedRow]:
    """The rows to print beside a record of `case` (model, trainer, precision, batch_size, batch_per, hardware).

    They are the rows of the same model and kind, in three tiers: first those with the trainer, batch and precision
    of the case, then the others with its trainer, then the rest. Within a tier the same batch comes first, then the
    same precision, then the same hardware, then the order of `rows`.
    Batches are compared over all devices, so 512 per device on 1x8 equals 4,096 global. A row whose printed precision
    is wrong matches under its printed and under its true one. `trainer` is nodes x devices, such as '2x8'.
    """

    def distance(row: PublishedRow) -> tuple[bool, ...]:
        trainer = row.trainer == case.get("trainer")
        batch = trainer and _same_batch(row, case)
        precision = case.get("precision") in (row.precision, row.true_precision)
        hardware = row.hardware == case.get("hardware")
        return (not trainer, not (batch and precision), not batch, not precision, not hardware)

    return sorted(rows(case["model"], kind), key=distance)


def _same_batch(row: PublishedRow, case: Mapping[str, Any]) -> bool:
    """True if a row of the case's trainer was run with the case's batch over all devices."""
    batch = case.get("batch_size")
    if batch is None:
        return False
    return row.global_batch == (batch * row.world_size if case.get("batch_per") == "device" else batch)
