"""What the process of a peer is asked for, and what it prepares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.beside.cases import Case


@dataclass(frozen=True)
class Assignment:
    """What a peer is asked for: its case and variant, and where the reference clone is.

    `data` are options of train.py that choose the data; `tiny` asks for a small network.
    """

    case: Case
    variant: str
    reference: str | None
    tiny: bool
    data: list[str]

    @property
    def batch_size(self) -> int:
        return self.case.batch(self.tiny)


@dataclass
class Prepared:
    """A peer's step, which trains or predicts one batch.

    Attributes:
        includes: what a step has, in words; `differs`: how the peer differs from what its authors run.
        packages: the distributions that it is made of, whose versions go into the record.
        samples: of a step; the batch if not given.
    """

    step: Callable[[], Any]
    includes: str
    packages: list[str]
    differs: list[str] = field(default_factory=list)
    samples: int | None = None
    reference: dict[str, Any] | None = None  # of a clone: its commit and a digest of its code
