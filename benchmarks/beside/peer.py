"""The process of a peer: prepares its step, then takes turns. `python -m benchmarks.beside.peer JSON`."""

import json
import sys
from pkgutil import resolve_name

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.cases import CASES
from benchmarks.beside.link import Link
from src.measure.environment import environment, library_version


def serve(assignment: Assignment, function: str, link: Link) -> None:
    """Prepares the peer and takes its turns."""
    from benchmarks.beside.peers.common import final_loss  # with torch, which may fail: after the link

    module, _, name = function.partition(":")
    prepared: Prepared = resolve_name(f"benchmarks.beside.peers.{module}:{name}")(assignment, link.device)
    versions = {package: library_version(package) for package in ("torch", *prepared.packages)}
    link.say_ready(
        includes=prepared.includes, differs=prepared.differs, versions=versions, environment=environment([]),
        reference=prepared.reference,
    )  # fmt: skip
    link.last_words = final_loss
    samples = assignment.batch_size if prepared.samples is None else prepared.samples
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
        assignment = Assignment(case, asked["variant"], asked["reference"], asked["tiny"], asked["data"])
        serve(assignment, asked["function"], link)
    except (Exception, SystemExit) as error:
        link.say_failed(error)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
