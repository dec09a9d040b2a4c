"""The process of a peer: prepares its step, then takes turns. `python -m benchmarks.beside.peer JSON`."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from benchmarks.beside.cases import CASES, Case
from benchmarks.beside.link import Link
from src.measure.environment import environment, library_version


@dataclass(frozen=True)
class Job:
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


def serve(job: Job, function: str, link: Link) -> None:
    """Prepares the peer and takes its turns."""
    from benchmarks.beside.peers.common import final_loss  # it imports this module

    module, _, name = function.partition(":")
    prepared: Prepared = resolve_name(f"benchmarks.beside.peers.{module}:{name}")(job, link.device)
    versions = {package: library_version(package) for package in ("torch", *prepared.packages)}
    link.say_ready(
        includes=prepared.includes, differs=prepared.differs, versions=versions, environment=environment([]),
        reference=prepared.reference,
    )  # fmt: skip
    link.last_words = final_loss
    samples = job.batch_size if prepared.samples is None else prepared.samples
    done = 0
    while link.begin(done):
        while True:
            prepared.step()
            done += samples
            if link.step(done):
                break


def main(description: str) -> None:
    """Serves what the parent describes; tells it of any error in one line."""
    link = Link()
    try:
        asked = json.loads(description)
        case = next(case for case in CASES[asked["model"]] if case.name == asked["case"])
        case = case.rehearsed() if asked["tiny"] else case
        job = Job(case, asked["variant"], asked["reference"], asked["tiny"], asked["data"])
        serve(job, asked["function"], link)
    except (Exception, SystemExit) as error:
        link.say_failed(error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
