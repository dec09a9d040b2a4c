"""Reads the records that a command line names: run folders, record files, sweeps, and folders of runs."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from src.errors import UserError
from src.report.job import differing_overrides, job_folders, label, read_job
from src.report.keys import compared_config
from src.report.record import Record, read_record

NAMED = 5  # folders without a record that a note names


@dataclass(frozen=True)
class Loaded:
    """Records with the paths that they are called by, and a sweep's jobs without one.

    `without` has folder, differing overrides, state and reason of each such job.
    """

    runs: Sequence[tuple[str, Record]]
    paths: Sequence[Path]
    without: Sequence[tuple[str, str, str, str]]


def load(paths: Sequence[Path]) -> Loaded:
    """Returns the records of the paths, each run once; a sweep stands for its jobs, another folder for its run folders.

    Folders without a record, also those in a folder of runs, are left out and named on stderr, if others have one; jobs
    without a record are returned. Of a run that was resumed the record that got furthest stays; the others are named.
    Raises UserError where there is no record at all, and for a record that cannot be read.
    """
    files: dict[Path, Path] = {}  # by where they are, since two paths may name one file
    without: list[tuple[str, str, str, str]] = []
    empty = []
    for path in paths:
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise UserError(f"{path}: this folder cannot be read (Permission denied)")
        jobs = list(job_folders(path).values()) if path.is_dir() else []
        record_files = list(_records_of(path, jobs))
        without += _without_record(jobs)
        if not record_files and not jobs:
            empty.append(path)
        elif path not in record_files and not jobs:
            empty += _without_result(path)
        for file in record_files:
            files.setdefault((file / "result.json" if file.is_dir() else file).resolve(), file)
    if not files:
        _refuse(paths, len(without))
    if empty := list(dict.fromkeys(empty)):
        folders = "1 folder" if len(empty) == 1 else f"{len(empty)} folders"
        more = f" and {len(empty) - NAMED} more" if len(empty) > NAMED else ""
        print(f"note: {folders} without a record left out: {', '.join(map(str, empty[:NAMED]))}{more}", file=sys.stderr)
    records = {file: read_record(file) for file in files.values()}
    for file, other in gone_on_with(records).items():
        del records[file]
        print(f"note: {_label(file)} left out: {_label(other)} is the same run and got further", file=sys.stderr)
    return Loaded([(_label(file), record) for file, record in records.items()], list(records), without)


def gone_on_with(records: Mapping[Path, Record]) -> dict[Path, Path]:
    """Returns the records of parts of a run of which another one is there, which got further, with that.

    Of one run and config the record with the most steps stays. A run that was gone on with under another config stays
    if it ended normally: it is a result of its own.
    """
    replacements = {}
    for file, record in records.items():
        others = {path: other for path, other in records.items() if path != file and _replaces(other, record)}
        if others:
            replacements[file] = max(others, key=lambda path: progress(others[path]))
    return replacements


def _replaces(other: Record, record: Record) -> bool:
    if record.run is None or other.run != record.run or progress(other) <= progress(record):
        return False
    began = [leg.began for leg in record.legs or ()]
    goes_on = began == [leg.began for leg in other.legs or ()][: len(began)]
    return compared_config(other) == compared_config(record) or (goes_on and record.status != "done")


def progress(record: Record) -> tuple[int, bool, int, str]:
    """Returns what orders the records of one run: the newest step, then how it ended, then the number of legs."""
    legs = record.legs or []
    last = legs[-1] if legs else None
    return (last.last_step if last else 0, record.status == "done", len(legs), last.began if last else "")


def _records_of(path: Path, jobs: Sequence[Path]) -> Iterator[Path]:
    if not path.is_dir() or has_record(path):
        yield path
        return
    folders = jobs or sorted(file.parent for file in path.glob("*/result.json"))
    yield from filter(has_record, folders)


def _without_result(path: Path) -> list[Path]:
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [folder for folder in folders if not has_record(folder)]


def has_record(folder: Path) -> bool:
    """Returns whether a folder has a record; False for one that cannot be read."""
    return os.path.exists(folder / "result.json")


def _without_record(folders: Sequence[Path]) -> Iterator[tuple[str, str, str, str]]:
    jobs = [read_job(folder) for folder in folders]
    for folder, job, varied in zip(folders, jobs, differing_overrides(jobs), strict=True):
        if not has_record(folder):
            yield str(folder), label(varied), job.state, job.reason or "no record"


def _refuse(paths: Sequence[Path], jobs: int) -> None:
    if jobs:
        raise UserError(f"{paths[0]}: none of the sweep's {jobs} jobs has a record yet; its log.txt files say why")
    if len(paths) == 1:
        raise UserError(f"{paths[0]}: no result.json in this folder or the folders in it: give the folder of a run")
    raise UserError(f"none of the {len(paths)} folders has a result.json: give the folders of runs")


def _label(path: Path) -> str:
    return str(path.parent if path.name == "result.json" else path)
