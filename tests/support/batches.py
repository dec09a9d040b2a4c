"""The batches of a training loader, one by one."""

from collections.abc import Iterable, Iterator
from typing import Any

from src.batches.step import StepBatches


def batches_of(loader: Iterable[StepBatches]) -> Iterator[Any]:
    """Yields the batches of all steps of a training loader."""
    return (batch for step in loader for batch in step.batches)
