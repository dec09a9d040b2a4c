"""Commits results: `python -m benchmarks.beside collect DIR ...`.

Writes src/published/reference.yaml, and docs/results/beside/MODEL_CASE.json, of which `python report.py --docs`
makes a page of comparisons.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.beside.peers.reference import COMMIT
from src.config.complete import hardware_of_gpu
from src.errors import UserError
from src.published.tables import CHOICES, read
from src.report.beside import short
from src.report.in_turn import NOT_FINITE, Comparison, Side, read_comparison
from src.report.in_turn import Case as TimedCase
from src.system.files import write_text

ROOT = Path(__file__).resolve().parents[2]
FILE, RESULTS = ROOT / "src/published/reference.yaml", ROOT / "docs/results/beside"
HEAD = """\
# Reference implementations measured by us on one GPU, each in one run with our code: NOT publications. Written by
# `python -m benchmarks.beside collect DIR`; docs/guides/beside.md says what a side includes. Of one case the fastest
# comes first. What could not be measured has no row.
"""
COLUMNS = ("kind", "batch_size", "precision", "throughput", "mem_used_gib", "note", "command", "environment")
GLOBAL_BATCH = ("dlrm",)
FEWEST_ROUNDS = 3


def main(arguments: Sequence[str], file: Path = FILE, results: Path = RESULTS) -> None:
    """Rewrites the tables of each model that the folders have results of; the other models keep theirs.

    Results of these models that were there before are removed.

    Raises UserError for folders without results, and for results that no row may come from.
    """
    paths = sorted(path for folder in arguments for path in Path(folder).rglob("beside.json"))
    if not paths:
        raise UserError("collect needs folders with beside.json in them: python -m benchmarks.beside MODEL --out DIR")
    comparisons = {path: checked(read_comparison(path), path) for path in paths}
    commits = sorted({short(comparison) for comparison in comparisons.values()})
    if len(commits) > 1:
        raise UserError(f"the results are of commits {', '.join(commits)}; measure all of them at one")
    chips = sorted({chip(comparison) for comparison in comparisons.values()})
    if len(chips) > 1:
        raise UserError(f"the results are of {', '.join(chips)}; measure all of them on one kind of GPU")
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    models = {comparison.case.model for comparison in comparisons.values()}
    tables = [table for table in document["tables"] if table["shared"]["model"] not in models]
    kept = sorted({table["shared"]["model"] for table in tables})
    tables += [table for model in sorted(models) for table in tables_of(model, [*comparisons.values()])]
    text = HEAD + yaml.safe_dump(
        {"shared": document["shared"], "tables": tables}, sort_keys=False, width=10**6, allow_unicode=True
    )
    write_text(file, text)
    for path in [path for model in models for path in results.glob(f"{model}_*.json")]:
        path.unlink()
    for path, comparison in comparisons.items():
        write_text(results / f"{comparison.case.model}_{comparison.case.name}.json", path.read_text(encoding="utf-8"))
    print(f"wrote {file}: {len(read(file))} rows")
    if kept:
        print(f"no results of {', '.join(kept)}: their rows stay as they were", file=sys.stderr)


def checked(comparison: Comparison, path: Path) -> Comparison:
    """Returns results that rows may come from."""
    if comparison.tiny:
        raise UserError(f"{path}: a rehearsal with tiny networks; measure without --tiny")
    if comparison.git.commit is None or comparison.git.dirty:
        raise UserError(f"{path}: of changed or unknown code; measure a commit (python -m src.measure.sources)")
    if chip(comparison) not in CHOICES["hardware"]:
        names = ", ".join(CHOICES["hardware"])
        raise UserError(f"{path}: measured on {chip(comparison) or 'a CPU'}; rows may be of one of {names}")
    if comparison.rounds < FEWEST_ROUNDS:
        raise UserError(f"{path}: of {comparison.rounds} rounds; measure {FEWEST_ROUNDS} or more")
    for side in comparison.sides:
        if side.final_loss == NOT_FINITE:
            raise UserError(f"{path}: the loss of {side.side} was not finite; its rate means nothing")
        if side.reference and side.reference.get("commit") is None:
            raise UserError(f"{path}: {side.side} came from a clone of other code; check out commit {COMMIT} there")
    return comparison


def chip(comparison: Comparison) -> str:
    """Returns the name in conf/hardware of the GPU, or the names of GPUs that have none or differ."""
    names = sorted(set(comparison.gpus))
    hardware = hardware_of_gpu(names[0]) if len(names) == 1 else None
    return str(hardware.name) if hardware else ", ".join(names)


def tables_of(model: str, comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Returns a table for each implementation; a convolution alone is no training and has no row."""
    rows: dict[str, list[list[Any]]] = {}
    of_model = [comparison for comparison in comparisons if comparison.case.model == model]
    for comparison in (comparison for comparison in of_model if comparison.case.kind != "convolution"):
        case = comparison.case
        for side in sorted(comparison.sides[1:], key=lambda side: -(side.throughput or 0)):
            name, _, variant = side.side.partition(", ")
            if side.status != "done" or side.throughput is None:
                print(f"{model} {case.name}: {side.side} has no row: {side.error}", file=sys.stderr)
                continue
            memory = side.reserved_gib
            where = f"commit {short(comparison)}, {comparison.measured_at[:10]}, {versions(side, comparison)}"
            rows.setdefault(source_of(name, side), []).append(
                [case.kind, case.batch_size, case.precision, round(side.throughput, 1),
                 round(memory, 1) if memory else "/", note_of(variant, case, side), comparison.command, where]
            )  # fmt: skip
    shared = {
        "model": model,
        "hardware": chip(of_model[0]),
        "unit": of_model[0].case.unit,
        "batch_per": "global" if model in GLOBAL_BATCH else "device",
    }
    return [
        {"source": source, "shared": shared, "columns": list(COLUMNS), "rows": cells} for source, cells in rows.items()
    ]


def source_of(name: str, side: Side) -> str:
    commit = (side.reference or {}).get("commit")
    return f"measured reference: {name}" + (f" (DeepLearningExamples, commit {commit})" if commit else "")


def note_of(variant: str, case: TimedCase, side: Side) -> str:
    """Returns in words how it ran, on what, and how many times as fast ours was in the same run."""
    ratio = side.ours_over_it
    words = [variant, case.note]
    if ratio:
        over_rounds = f"{ratio.least:.2f} to {ratio.greatest:.2f}"
        words.append(f"ours {ratio.median:.2f} times as fast in the same run ({over_rounds})")
    return "; ".join(filter(None, words))


def versions(side: Side, comparison: Comparison) -> str:
    """Returns what the peer is made of, with the driver."""
    packages = ", ".join(f"{name} {version}" for name, version in (side.versions or {}).items() if version)
    return f"{packages}, driver {comparison.driver}" if comparison.driver else packages
