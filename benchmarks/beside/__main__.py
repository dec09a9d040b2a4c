"""`python -m benchmarks.beside MODEL --out DIR`: see the package."""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.beside.cases import CASES
from src.errors import UserError

LIMIT_S = 600.0


def main(arguments: list[str]) -> int:
    """Runs what the command line asks for; returns the exit code."""
    try:
        if arguments[:1] == ["collect"]:
            from benchmarks.beside.collect import main as collect

            collect(arguments[1:])
            return 0
        return compare(parsed(arguments))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.beside", description="Times our code and peers in turn.")
    parser.add_argument("model", choices=[*CASES], help="or `collect DIR`: writes the published rows from results")
    what = "names of cases, * for any letters (all if none); options of train.py and predict.py"
    parser.add_argument("words", nargs="*", metavar="CASE|option=value", help=what)
    parser.add_argument("--out", type=Path, help="folder of the results, one more for each case (outputs/beside/MODEL)")
    parser.add_argument("--reference", type=Path, help="a clone of NVIDIA's DeepLearningExamples, for its models")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (2)")
    parser.add_argument("--steps", type=int, help="of a turn, instead of --seconds; for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="small networks: rehearses the command on any machine")
    parser.add_argument("--peers", default="*", help="only peers whose name matches, for example '*graph*'")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that a side may take to answer (600)")
    asked = parser.parse_intermixed_args(arguments)
    asked.out = asked.out or Path("outputs/beside") / asked.model
    return asked


def compare(asked: argparse.Namespace) -> int:
    """Runs the chosen cases; returns 1 if none of them has a ratio."""
    from dataclasses import replace

    from benchmarks.beside.results import write_case, write_page
    from benchmarks.beside.rounds import run_case
    from benchmarks.beside.sides import Wanted
    from src.report.beside import table

    patterns = [word for word in asked.words if "=" not in word]
    options = [word for word in asked.words if "=" in word]
    chosen = [case for case in CASES[asked.model] if not patterns or any(fnmatch(case.name, p) for p in patterns)]
    if not chosen:
        names = ", ".join(case.name for case in CASES[asked.model])
        raise UserError(f"{' '.join(patterns)}: no case of {asked.model} has this name; there are {names}")
    if asked.rounds < 1 or asked.seconds <= 0 or (asked.steps is not None and asked.steps < 1):
        raise UserError("--rounds, --seconds and --steps must be above 0")
    if asked.reference is not None and not asked.reference.is_dir():
        raise UserError(f"--reference {asked.reference}: no such folder; clone NVIDIA/DeepLearningExamples there")
    wanted = Wanted(asked.out, asked.rounds, asked.seconds, asked.steps, asked.tiny,
                    asked.reference, options, asked.limit)  # fmt: skip
    comparisons = []
    for case in chosen:
        case = replace(case, peers=tuple(peer for peer in case.peers if fnmatch(peer.name, asked.peers)))
        case = case.rehearsed() if asked.tiny else case
        print(f"{asked.model} {case.name}", flush=True)
        sides = run_case(case, wanted, lambda line: print(line, flush=True))
        comparisons.append(write_case(case, sides, wanted))
        path = write_page(wanted.out, asked.model, comparisons)  # after each case, for a run that is cut short
        print(table(comparisons[-1:]), flush=True)
    print(f"wrote {path}")  # pyright: ignore[reportPossiblyUnboundVariable]
    return 0 if any(side.ours_over_it for comparison in comparisons for side in comparison.sides) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
