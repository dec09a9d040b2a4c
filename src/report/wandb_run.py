"""What W&B holds of a run: name, tags and axes from its begin on, and at its end its record, tables and pictures."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from src.errors import UserError
from src.report.compare.quantities import figures, quantities
from src.report.job import differing_overrides, job_folders, label, read_job
from src.report.record import Record
from src.system.masking import mask_streams, masked

AXES = ("samples", "seconds", "epoch", "time_s")  # of charts; seconds since the first step, time_s since the start
FIGURES = "figures/"  # and a quantity's name: the summary's figures that comparisons have
MOST_ROWS = 1000  # of a table
MOST_LETTERS = {"name": 128, "tag": 64}  # W&B refuses longer ones
# Overrides that do not tell runs apart: who watches, where files are, what the tags say.
UNNAMED = (
    *("logger", "callbacks", "hardware", "pictures", "note", "resume", "accept_changes", "ckpt_path", "sweep", "hydra"),
    *("output", "output_dir", "output_root", "data_root"),
)
SHOWN = {"name", "notes", "tags", "group", "job_type", "config"}  # W&B's page has them; other settings are places
NOT_FIGURES = (
    "schema_version",
    "config",
    "environment",
    "history",
    "case",
    "kind",
    "unit",
    "error",
    "times",
    "reading",
)


def described(kind: str, model: str, tags: Sequence[str], overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Returns name, group, job type and tags of a run.

    Args:
        kind: 'train' or 'predict'.
        tags: the names of precision, trainer and hardware.
        overrides: what the user typed, without secrets; the name has those that tell runs apart.
        folder: of the run. The name of a sweep's job has the overrides that the jobs differ in.
    """
    jobs = job_folders(folder.absolute().parent) if (folder / "job.json").exists() else {}
    every = dict(zip(jobs.values(), differing_overrides([read_job(path) for path in jobs.values()]), strict=True))
    typed = [text.lstrip("+") for text in overrides if not text.startswith("~") and _tells(text)]
    named = label(every.get(folder.absolute(), {})) or " ".join(typed)
    sweep = folder.absolute().parent.name if jobs else None
    return {
        "name": f"{model} {named}".strip()[: MOST_LETTERS["name"]],
        "group": sweep or model,
        "job_type": kind,
        "tags": [tag[: MOST_LETTERS["tag"]] for tag in dict.fromkeys([*tags, "sweep"] if sweep else tags)],
    }


def _tells(override: str) -> bool:
    key = override.lstrip("+").partition("=")[0]
    return key != "model" and re.split(r"[./@]", key)[0] not in UNNAMED


def begin(**settings: Any) -> Any:
    """Returns a new W&B run whose charts are drawn over samples, or over seconds by a choice in its page.

    Raises UserError where W&B refuses to begin it: a variable of its that is wrong, no key, no server.
    """
    import wandb

    for key in SHOWN & settings.keys():
        value = settings[key]
        settings[key] = masked(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)
    try:
        run = wandb.init(**settings)
        mask_streams()  # W&B keeps what is printed
    except (wandb.Error, ValueError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"W&B does not begin a run: {why}; WANDB_MODE=offline needs neither key nor network") from error
    for axis in AXES:
        run.define_metric(axis, hidden=True)
    run.define_metric("*", step_metric=AXES[0])
    return run


def log_end(run: Any, record: Record, files: Mapping[str, Path]) -> None:
    """Gives a W&B run the record of ours: config, every figure as summary, tables, pictures, result.json.

    Args:
        files: the run's files by what they show, among them 'record'; PNGs become pictures, csv files tables.
    """
    import wandb

    plain = record.to_dict()
    run.config.update({key: plain[key] for key in ("config", "case", "environment")}, allow_val_change=True)
    values = {name: value for name, value in figures(record).items() if value is not None}
    shown: dict[str, Any] = {"final figures": _figures(record, values)}
    for name, path in files.items():
        if path.suffix == ".png":
            shown[name] = wandb.Image(str(path))
        elif path.suffix == ".csv":
            shown[name] = _table(path)
    step = max((row.get("step") or 0 for row in record.history), default=0)
    if step >= run.step:  # else the run has it from before
        run.log(shown, step=step, commit=True)
    run.summary.update(summary(record))
    if record.utilisation and record.utilisation.impossible:
        run.summary["utilisation.error"] = f"above the {' and the '.join(record.utilisation.impossible)}"
    if record.error:
        run.summary["error"] = f"{record.error.type}: {record.error.message}"
    artifact = wandb.Artifact(f"record-{run.id}", type="record")
    artifact.add_file(str(files["record"]), name="result.json")
    run.log_artifact(artifact)


def summary(record: Record) -> dict[str, Any]:
    """Returns every figure of a record by its name, and those that comparisons have by FIGURES and their names."""
    values = {FIGURES + name: value for name, value in figures(record).items() if value is not None}
    plain = {key: value for key, value in record.to_dict().items() if key not in NOT_FIGURES}
    return values | dict(flat(plain))


def _figures(record: Record, values: Mapping[str, float]) -> Any:
    """Returns the table of the figures that comparisons have, in their units."""
    import wandb

    shown = [quantity for quantity in quantities(record) if quantity.name in values]
    rows = [[quantity.title, values[quantity.name] * quantity.factor, quantity.unit] for quantity in shown]
    return wandb.Table(columns=["figure", "value", "unit"], data=rows)


def _table(path: Path) -> Any:
    """Returns the first MOST_ROWS rows of a csv file; a column of numbers alone as numbers, empty cells as None."""
    import wandb

    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = [row for row, _ in zip(csv.reader(file), range(MOST_ROWS + 1), strict=False)] or [[]]
    columns = [_numbers(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in head]
    return wandb.Table(columns=list[str | int](head), data=[list(row) for row in zip(*columns, strict=True)])


def _numbers(column: Sequence[str]) -> list[Any]:
    try:
        return [float(cell) if cell else None for cell in column]
    except ValueError:
        return [cell or None for cell in column]


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of plain data that are not None, by their keys joined with dots."""
    if isinstance(value, Mapping | list):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flat(item, f"{key}.{name}" if key else str(name))
    elif value is not None:
        yield key, value
