"""Recomputes the derived figures of records and comparisons, and checks what their fields imply of each other.

A record with `times` has its rates and percentiles computed again. In an older one they have to agree with what else it
holds: phases, history, latency, peaks. A digest shows that a file was changed after it was written.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.report.implied import Check, comparison_checks, record_checks
from src.report.in_turn import typed
from src.report.json_files import read_json
from src.report.record import Record, digest, read_record
from src.system.files import write_text
from src.system.reading import read_bytes, read_text

DIGESTS = "digests.txt"  # in a folder of kept results: a line for each file, as `sha256sum` writes and checks them
COST = 1e-3  # sentences of different seeds differ in length
SHOWN = 8  # checks of a file that are named


@dataclass
class Verified:
    """What was checked of a file: the number of checks, those that failed, and what could not be checked, in words."""

    file: Path
    checked: int = 0
    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def add(self, checks: Iterator[Check]) -> None:
        for check in checks:
            if check.holds is None:
                self.unchecked += [] if check.what in self.unchecked else [check.what]
            else:
                self.checked += 1
                self.wrong += [] if check.holds else [check.what]


def verify(paths: Sequence[Path]) -> list[Verified]:
    """Returns what was checked of every record and comparison of the paths, of folders those in them.

    Raises UserError where there is none, and for a file that cannot be read.
    """
    results = [verify_file(file) for path in paths for file in _files(path)]
    if not results:
        raise UserError(f"{paths[0]}: no record or comparison there: give run folders, or a folder of records")
    for path in paths:
        if (path / DIGESTS).is_file():
            _check_digests(path, {result.file.resolve(): result for result in results})
    _check_costs(results)
    return results


def verify_file(file: Path) -> Verified:
    """Returns what was checked of a record or of a comparison."""
    content = read_json(file)
    verified = Verified(file)
    if _is_comparison(content):
        try:
            verified.add(comparison_checks(typed(content)))
        except ValueError as error:
            raise UserError(f"{file}: {error}") from error
    else:
        verified.add(record_checks(read_record(file)))
    verified.add(_digest(json.loads(read_text(file))))
    return verified


def seal(folder: Path) -> int:
    """Adds the digests of files that `folder`/digests.txt lacks, and drops those of files that are gone.

    Returns how many it added. The line of a file that has changed stays: who means the change deletes it by hand.
    """
    there = {str(file.relative_to(folder)): file for file in _files(folder)}
    listed = {name: text for name, text in _listed(folder).items() if name in there}
    added = {name: _sha256(file) for name, file in there.items() if name not in listed}
    lines = sorted((listed | added).items())
    write_text(folder / DIGESTS, "".join(f"{text}  {name}\n" for name, text in lines))
    return len(added)


def refuse_wrong(verified: Sequence[Verified]) -> None:
    """Raises UserError with the first figures that cannot be, if there are any."""
    wrong = [result for result in verified if result.wrong]
    if wrong:
        first = "; ".join(wrong[0].wrong[:SHOWN])
        more = f" (and {len(wrong) - 1} more files: python report.py verify ...)" if len(wrong) > 1 else ""
        raise UserError(f"{wrong[0].file}: {first}{more}")


def described(verified: Sequence[Verified]) -> str:
    """Returns a line for each file with a wrong figure, then the totals and what could not be checked."""
    lines = [f"{result.file}: {what}" for result in verified for what in result.wrong]
    unchecked: dict[str, int] = {}
    for result in verified:
        for what in result.unchecked:
            unchecked[what] = unchecked.get(what, 0) + 1
    checks, wrong = sum(result.checked for result in verified), sum(bool(result.wrong) for result in verified)
    lines.append(f"{len(verified)} files, {checks:,} checks, {wrong} files with wrong figures")
    lines += [f"not checked in {count} of {len(verified)} files: {what}" for what, count in unchecked.items()]
    return "\n".join(lines)


def _is_comparison(content: Any) -> bool:
    return isinstance(content, dict) and "sides" in content


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / "result.json").exists():
        return [path / "result.json"]
    kept = [file for part in ("records", "beside") for file in sorted((path / part).rglob("*.json"))]
    return kept or sorted([*path.glob("*.json"), *path.glob("*/result.json")])


def _digest(content: Mapping[str, Any]) -> Iterator[Check]:
    if "digest" in content:
        yield Check("its digest is of other content", content["digest"] == digest(content))
    else:
        yield Check("the whole content: it has no digest", None)


def _sha256(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()


def _listed(folder: Path) -> dict[str, str]:
    file = folder / DIGESTS
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {name: text for text, _, name in (line.partition("  ") for line in lines)}


def _check_digests(folder: Path, verified: Mapping[Path, Verified]) -> None:
    listed = _listed(folder)
    for file, result in verified.items():
        if folder.resolve() in file.parents:
            text = listed.get(str(file.relative_to(folder.resolve())))
            name = folder / DIGESTS
            if text is None:
                check = Check(f"{name} does not list it: python report.py verify {folder} --seal", False)
            else:
                check = Check(f"it is not the file that {name} lists", text == _sha256(file))
            result.add(iter([check]))
            result.unchecked = [what for what in result.unchecked if "digest" not in what]


def _check_costs(verified: Sequence[Verified]) -> None:
    """Compares the operations of a sample between records of one network, data and batch: they are a constant."""
    groups: dict[str, list[tuple[Verified, float]]] = {}
    for result in verified:
        record = _record(result.file)
        cost = _cost(record) if record else None
        if record and cost:
            config = record.config
            task = {**((config.get("model") or {}).get("task") or {}), "optimizer": None, "schedule": None}
            data = {**(config.get("datamodule") or {}), "seed": None, "data_seed": None}
            key = json.dumps([record.kind, record.case.model, record.case.batch_size, task.get("network"), data],
                             sort_keys=True)  # fmt: skip
            groups.setdefault(key, []).append((result, cost))
    for members in groups.values():
        costs = sorted(cost for _, cost in members)
        middle = costs[len(costs) // 2]
        for result, cost in members:
            if len(costs) > 2:
                what = f"utilisation.flops_per_s is of {cost / middle:.3f} times the operations of its like"
                result.add(iter([Check(what, abs(cost / middle - 1) < COST)]))


def _record(file: Path) -> Record | None:
    content = read_json(file)
    return None if _is_comparison(content) else read_record(file)


def _cost(record: Record) -> float | None:
    """Returns the operations of a sample by the record's own figures."""
    rate = record.throughput if record.kind == "predict" else (record.steady.p_core if record.steady else None)
    reached = record.utilisation.flops_per_s if record.utilisation else None
    return reached / (rate / record.ranks) if reached and rate else None
