"""What a record keeps of how well classes are told apart, and how far scores are probabilities."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_CLASSES = 100  # that a record lists: 1,000 would be most of it


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """A class: its samples, those that were named so, and those of both; see docs/reference/metrics.md."""

    name: str
    count: int
    named: int
    right: int

    @property
    def recall(self) -> float | None:
        """Share of the samples of the class that were given it; None where there are none."""
        return self.right / self.count if self.count else None

    @property
    def precision(self) -> float | None:
        """Share of the samples with this answer that are of the class; None where none has it."""
        return self.right / self.named if self.named else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None for a class that neither occurs nor was given."""
        return 2 * self.right / (self.count + self.named) if self.count + self.named else None


@dataclass(frozen=True, kw_only=True)
class ScoreGroup:
    """A group of samples by ascending score: its mean score, the share that is positive or right, and its size."""

    score: float | int
    share: float | int
    count: int


def listed(classes: Sequence[ClassFigures]) -> list[dict[str, Any]] | None:
    """Returns the figures of classes as plain values for a record; None without classes and of more than a hundred."""
    return [asdict(figures) for figures in classes] if 0 < len(classes) <= MOST_CLASSES else None
