"""`report.py wandb`: existing records as W&B runs, and their comparison as a W&B report."""

import argparse
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from src.errors import UserError
from src.report.compare.build import compare
from src.report.compare.quantities import samples_of, seconds_of
from src.report.keys import settings
from src.report.load import load
from src.report.record import Record
from src.report.wandb_run import AXES, begin, described, log_end
from src.system.files import write_text

FOLDER = Path("wandb_report")


def wandb_options(parser: argparse.ArgumentParser) -> None:
    what = "run folder, its result.json, a record file, a sweep, or a folder of runs"
    parser.description = (
        "Write existing records as W&B runs, with their history, figures, tables and pictures, and their comparison as "
        "a W&B report. Offline unless WANDB_MODE=online; then both are sent."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=what)
    project, entity = os.environ.get("WANDB_PROJECT", "reprise"), os.environ.get("WANDB_ENTITY", "")
    parser.add_argument("--project", default=project, help="default: WANDB_PROJECT, or reprise")
    parser.add_argument("--entity", default=entity, help="user or team; default: WANDB_ENTITY, or the key's own")
    parser.add_argument("--published", action="store_true", help="with the published rows of the case in the report")
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder to write (default: %(default)s)")


def run_wandb(options: argparse.Namespace) -> int:
    """Writes the runs and the report, or sends them; prints where they are."""
    from src.report.compare.wandb_report import report, specification, workspaces

    workspaces()  # before anything is written
    loaded = load(options.runs)
    comparison = compare(loaded, published=options.published)
    online = os.environ.get("WANDB_MODE", "offline") == "online"
    place = {"project": options.project, "entity": options.entity or None, "dir": str(options.output)}
    options.output.mkdir(parents=True, exist_ok=True)
    runs, pictures, offline = {}, set[str](), dict[str, None]()
    for (source, record), path in zip(loaded.runs, loaded.paths, strict=True):
        files = _files(path)
        if logged := _logged(files["record"].parent):
            runs[source] = logged.name.rpartition("-")[2]
            offline[f"{logged.parent}/offline-run-*"] = None
            print(f"{source}: has the W&B run {runs[source]}, of logger=wandb")
            continue
        pictures |= {name for name, file in files.items() if file.suffix == ".png"}
        runs[source] = backfill(record, files, **place, mode="online" if online else "offline")
        offline[f"{options.output}/wandb/offline-run-*"] = None
        print(f"{source}: W&B run {runs[source]}")
    entity = options.entity or (_own_entity() if online else "")
    made = report(comparison, runs, sorted(pictures), options.project, entity, online)
    if online:
        print(f"report: {save(made)}")
        return 0
    file = options.output / "report.json"
    write_text(file, specification(made))
    print(f"report: {file}\nto send the runs: wandb sync {' '.join(offline)}")
    print("to send the runs and save the report: this command with WANDB_MODE=online")
    return 0


def backfill(record: Record, files: Mapping[str, Path], **place: Any) -> str:
    """Writes or sends a W&B run with the record's history and figures; returns its id, always the same for a record.

    Args:
        files: as for `log_end`.
        place: project, entity, folder (dir) and mode of W&B.
    """
    import wandb

    case = record.case
    overrides: Sequence[str] = record.environment.get("overrides") or []
    named = described(record.kind, case.model, [case.precision, case.trainer, case.hardware], overrides,
                      files["record"].parent)  # fmt: skip
    # The machine, the code and the console of this command are not the run's.
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
    run = begin(id=identity(record), resume="allow", settings=quiet, **place, **named)
    if "model" in record.config:
        run.config.update(settings(record.config), allow_val_change=True)
    for step, row in rows(record).items():
        if step >= run.step:  # else it was sent before
            run.log(row, step=step)
    log_end(run, record, files)
    run.finish(exit_code=int(record.status != "done"))
    return run.id


def rows(record: Record) -> dict[int, dict[str, Any]]:
    """Returns what the history has at each step, in their order: losses, metrics and the axes of W&B's charts."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in record.history:
        axes = {"samples": samples_of(record, row), "seconds": seconds_of(record, row)}
        axes |= {"epoch": row.get("epoch"), "time_s": row.get("time_s")}
        others = {key: value for key, value in row.items() if key not in ("step", *AXES)}
        values = {key: value for key, value in (others | axes).items() if value is not None}
        by_step.setdefault(int(row.get("step") or 0), {}).update(values)
    return dict(sorted(by_step.items()))


def identity(record: Record) -> str:
    """Returns the id of a record's W&B run, so that a record that is sent again is no second run."""
    return hashlib.sha256(json.dumps(record.to_dict(), sort_keys=True).encode()).hexdigest()[:12]


def save(made: Any) -> str:
    """Saves a report; returns its address. Raises UserError where W&B refuses it."""
    import wandb

    try:
        return made.save().url
    except (wandb.Error, ValueError) as error:
        raise UserError(f"W&B has not saved the report: {' '.join(str(error).split())}") from error


def _files(path: Path) -> dict[str, Path]:
    """Returns the record, the pictures and the tables of a run's folder; of a record file that alone."""
    if path.name == "result.json":
        path = path.parent
    if not path.is_dir():
        return {"record": path}
    others = [*sorted(path.glob("*.png")), *sorted(file for file in path.glob("*.csv") if file.name != "metrics.csv")]
    return {"record": path / "result.json", **{file.stem: file for file in others}}


def _logged(folder: Path) -> Path | None:
    """Returns the files of the newest W&B run that the run itself wrote beside its result.json; None without one."""
    if not (folder / "result.json").exists():
        return None
    return max(folder.glob("wandb/*run-*-*"), key=lambda path: path.name.partition("run-")[2], default=None)


def _own_entity() -> str:
    import wandb

    return wandb.Api().default_entity or ""
