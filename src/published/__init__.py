"""Published result rows: each figure as printed, with its source and, if it is wrong, the correction.

`rows(model="dlrm", kind="train")` returns the published rows of a model, `nearest_rows(case, kind="train")` the same
in the order of similarity to a case; `row.figure("p_core")` is the printed figure, `row.best("p_core")` the corrected.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from src.errors import UserError
from src.published.row import FIGURES, Correction, PublishedMetric, PublishedRow
from src.published.tables import read

__all__ = [
    "FIGURES",
    "Correction",
    "PublishedMetric",
    "PublishedRow",
    "about",
    "is_of_case",
    "nearest_rows",
    "paper_table",
    "rows",
]

FOLDER = Path(__file__).parent
PAPERS = FOLDER / "papers"


@cache
def _every_row() -> tuple[PublishedRow, ...]:
    entries = [row for path in sorted(FOLDER.glob("*.yaml")) for row in read(path)]
    return tuple(sorted(entries, key=lambda row: row.measured))  # stable: the files' order within each


@cache
def about(model: str) -> Mapping[str, str]:
    """Returns the model's task, data and metric, in words, by these names; empty for a model without published rows."""
    file = FOLDER / f"{model}.yaml"
    content: Any = OmegaConf.to_container(OmegaConf.load(file)) if file.exists() else {}
    return content.get("about", {})


def rows(model: str | None = None, kind: str | None = None) -> list[PublishedRow]:
    """Returns the published rows of a model and a kind ('train' or 'predict'); None selects all.

    Publications come first, in the order of the files, then measured references. Raises UserError with file and row of
    a mistake in the data.
    """
    return [row for row in _every_row() if model in (None, row.model) and kind in (None, row.kind)]


def nearest_rows(case: Mapping[str, Any], kind: str) -> list[PublishedRow]:
    """Returns the rows of the case's model and of `kind`, the most similar to the case first.

    There are three tiers: rows with the trainer, batch and precision of the case, then the others with its trainer,
    then the rest. Within a tier the same batch comes first, then the same precision, the same hardware, and the order
    of `rows`. Batches are compared over all devices: 512 per device on 1x8 equals 4,096 global. A row whose printed
    precision is wrong matches both its printed and its true one.

    Args:
        case: model, trainer (nodes x devices, such as '2x8'), precision, batch_size, batch_per, hardware.
    """

    def distance(row: PublishedRow) -> tuple[bool, ...]:
        trainer = row.trainer == case.get("trainer")
        batch = trainer and _same_batch(row, case)
        precision = case.get("precision") in (row.precision, row.true_precision)
        hardware = row.hardware == case.get("hardware")
        return (not trainer, not (batch and precision), not batch, not precision, not hardware)

    return sorted(rows(case["model"], kind), key=distance)


def is_of_case(row: PublishedRow, case: Mapping[str, Any]) -> bool:
    """Returns whether a row of the case's model has its trainer, batch over all devices, and precision."""
    same = row.trainer == case.get("trainer") and _same_batch(row, case)
    return same and case.get("precision") in (row.precision, row.true_precision)


def _same_batch(row: PublishedRow, case: Mapping[str, Any]) -> bool:
    """Returns whether a row with the case's trainer has the case's batch over all devices."""
    batch = case.get("batch_size")
    if batch is None:
        return False
    return row.global_batch == (batch * row.world_size if case.get("batch_per") == "device" else batch)


def paper_table(name: str) -> dict[str, Any]:
    """Returns the `columns` and `rows` of papers/`name`.yaml. Raises UserError where there is none."""
    if not (PAPERS / f"{name}.yaml").exists():
        raise UserError(f"no table {name!r}; there are {', '.join(sorted(file.stem for file in PAPERS.iterdir()))}")
    table: Any = OmegaConf.to_container(OmegaConf.load(PAPERS / f"{name}.yaml"))
    return table
