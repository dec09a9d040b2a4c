"""`+fix_hp=auto`: finds the largest batch that fits, by short runs on all ranks, each in its own processes.

The search starts at the case's own batch and quadruples it until a run does not fit (or halves it until one does),
then bisects to within 1/16. After two runs that fit it predicts the limit from the memory that they used.
A run fits if it ends without an error and at least `margin` of the memory of its fullest device was free at the peak;
memory of other processes and libraries is not free. Trials keep the case's learning rate; the final run's grows by
`lr_rule`. The record of each trial is in RUN/fix_hp.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from src.config.hints import allows
from src.config.ranges import Count, NotNegative, ShareBelow1
from src.config.schema import TrainConfig
from src.config.settings import config_options
from src.config.values import check_training, check_values
from src.errors import UserError
from src.report.job import SweepJob, register_jobs
from src.sweep.gpus import gpu_name, visible_gpus
from src.sweep.launcher import run_key
from src.sweep.outcome import record_of
from src.sweep.runner import Runner, Slots
from src.sweep.status import Status
from src.system.files import locked, write_text
from src.system.group import started_by
from src.system.home import CONF
from src.system.interpreter import python

POWERS = {"keep": 0.0, "sqrt": 0.5, "linear": 1.0}
SAFETY = 0.98  # part of the predicted batch that is tried
GROWTH = 4  # the next batch is at most this many times the last one that fits
RESOLUTION = 16  # the search ends when the batch is known to within 1/16 of it
TRIAL_OVERRIDES = (
    "callbacks=bare", "logger=none", "pictures=false", "fit.eval_every_n_epochs=null", "fit.eval_every_n_steps=null",
    "fit.evaluate_first=false", "fit.final_evaluation=false",
)  # fmt: skip
DROPPED_IN_TRIALS = (
    "fix_hp", "hp.batch_size", "hp.lr", "callbacks=", "~callbacks", "logger", "pictures", "output_dir", "resume",
    "ckpt_path", "fit.max_steps",
)  # fmt: skip
CASE_GROUPS = ("model", "datamodule", "trainer", "precision", "hardware", "execution", "fix_hp", "seed")
TOO_LARGE = re.compile(r"on (\d+) rank\(s\) is larger than the training split of (\d+)")


@dataclass
class Auto:
    """What conf/fix_hp/auto.yaml may hold, where it is explained."""

    name: str
    choose: Literal["batch_size", "p_core"]
    margin: ShareBelow1
    steps: Count
    multiple: Count
    most: Count | None
    lr_rule: Literal["sqrt", "linear", "keep"]
    file: str


@dataclass(frozen=True)
class Trial:
    """The result of one trial. Rates in samples per second, memory in GiB of the fullest device.

    `p_core` is that of steady steps, or of all steps if none is steady.
    """

    batch_size: int
    fits: bool
    p_core: float | None = None
    mem_gib: float | None = None
    used_gib: float | None = None  # by all processes
    total_gib: float | None = None
    reason: str = ""  # why it does not fit


def settle_batch(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Returns the config, for `fix_hp=auto` with the batch and learning rate found. Must run before any use of a GPU.

    Args:
        overrides: the overrides of the run.
    """
    if config.fix_hp is None or config.fix_hp.name != "auto":
        return config
    run = check_training(config)
    check_values("fix_hp.", run.fix_hp, Auto)
    settings = Auto(**run.fix_hp)
    file, case = Path(settings.file), case_name(config)
    row = read_rows(file).get(case)
    if row is None:
        if started_by() is not None:  # ranks started by this project find the row
            raise UserError(
                "fix_hp=auto starts its trials itself: run it without torchrun or srun, or give hp.batch_size"
            )
        row = search(run, settings, [text for text in overrides if not text.lstrip("+").startswith(DROPPED_IN_TRIALS)])
        with locked(file.with_suffix(".lock")):  # other runs may write at the same time
            write_text(file, "# What fix_hp=auto found.\n" + OmegaConf.to_yaml(read_rows(file) | {case: row}))
    config.hp.batch_size, config.hp.lr = row["batch_size"], float(row["lr"])
    if started_by() is None:
        chosen = f"hp.batch_size={config.hp.batch_size} hp.lr={config.hp.lr:g}"
        print(f"fix_hp=auto: {chosen}{published_row_note(run)}; {file}", flush=True)
    return config


def read_rows(file: Path) -> dict[str, Any]:
    """Returns the rows found so far, by case. Raises UserError for a file without valid rows."""
    if not file.exists():
        return {}
    try:
        rows: Any = OmegaConf.to_container(OmegaConf.load(file))
        assert all(allows(Count, row["batch_size"]) and allows(NotNegative, row["lr"]) for row in rows.values())
        return rows
    except (YAMLError, OmegaConfBaseException, AttributeError, KeyError, TypeError, AssertionError):
        raise UserError(f"{file}: not what fix_hp=auto wrote; delete it, or give another fix_hp.file") from None


def search(config: TrainConfig, settings: Auto, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the row of this case: batch, learning rate, and the figures of the chosen trial."""
    usual = config.hp
    unit = settings.multiple * (config.world_size if usual.batch_per == "global" else 1)
    if settings.most is not None and settings.most < unit:
        raise UserError(f"fix_hp.most={settings.most} is below {unit}, the least that is tried; lower fix_hp.multiple")
    folder = Path(config.output_dir) / "fix_hp"
    trials: dict[int, Trial] = {}

    def fits(batch_size: int) -> bool:
        if batch_size not in trials:
            trials[batch_size] = run_trial(config, settings, overrides, folder, batch_size)
        return trials[batch_size].fits

    def limit() -> int | None:
        limits = [settings.most, *(split_limit(trial.reason, usual.batch_per) for trial in trials.values())]
        return min((size for size in limits if size is not None), default=None)

    largest(usual.batch_size, unit, fits, lambda: predicted_batch([*trials.values()], settings.margin), limit)
    good = [trial for trial in trials.values() if trial.fits]
    if not good:
        raise UserError(f"fix_hp=auto: no batch fits, not even {min(trials)}: {trials[min(trials)].reason}")
    best = max(good, key=lambda trial: trial.batch_size if settings.choose == "batch_size" else trial.p_core or 0.0)
    lr = usual.lr * (best.batch_size / usual.batch_size) ** POWERS[settings.lr_rule]
    return {
        "batch_size": best.batch_size, "batch_per": usual.batch_per, "lr": float(f"{lr:.6g}"), "p_core": best.p_core,
        "mem_gib": best.mem_gib, "tried": sorted(trials), "records": str(folder),
    }  # fmt: skip


def predicted_batch(trials: Sequence[Trial], margin: float) -> float | None:
    """Returns the batch that would fill the memory, extrapolated linearly from the two largest that fit.

    None with fewer than two, or if memory does not grow between them.
    """
    fitting = sorted((t.batch_size, t.used_gib, t.total_gib) for t in trials if t.fits and t.used_gib and t.total_gib)
    if len(fitting) < 2:
        return None
    (less, less_gib, _), (more, more_gib, total_gib) = fitting[-2:]
    gib_per_sample = (more_gib - less_gib) / (more - less)
    return more + ((1 - margin) * total_gib - more_gib) / gib_per_sample if gib_per_sample > 0 else None


def split_limit(reason: str, batch_per: str) -> int | None:
    """Returns the largest batch (per device or global) that the training split allows, if `reason` names its size."""
    if (match := TOO_LARGE.search(reason)) is None:
        return None
    ranks, samples = map(int, match.groups())
    return samples if batch_per == "global" else samples // ranks


def largest(
    usual: int,
    unit: int,
    fits: Callable[[int], bool],
    predict: Callable[[], float | None] = lambda: None,
    limit: Callable[[], int | None] = lambda: None,
) -> int | None:
    """Returns the largest multiple of `unit` that fits, to within 1/RESOLUTION; None if `unit` does not fit.

    Args:
        usual: the first batch to try.
        predict: returns the batch predicted from the trials so far. limit: returns the known upper limit.
    """

    def allowed(size: int) -> int:
        most = limit()
        return size if most is None else min(size, max(unit, most // unit * unit))

    good, size = 0, allowed(max(unit, usual // unit * unit))
    while fits(size):
        good, predicted = size, predict()
        size = GROWTH * good
        if predicted is not None:  # a little below the prediction, but above `good`
            size = int(min(SAFETY * predicted, size)) // unit * unit
            size = max(size, good + max(unit, good // RESOLUTION // unit * unit))
        size = allowed(size)
        if size <= good:
            return good
    bad = size
    while good == 0 and bad > unit:  # not even the usual batch fits
        size = allowed(max(unit, bad // 2 // unit * unit))
        if fits(size):
            good = size
        else:
            bad = size
    while good and bad - good > max(unit, good // RESOLUTION):
        size = (good + bad) // 2 // unit * unit
        if (most := allowed(bad)) + unit < bad:  # the training split ends there: all of it may fit
            bad, size = most + unit, most
            if size == good:
                break
        if fits(size):
            good = size
        else:
            bad = size
    return good or None


def run_trial(config: TrainConfig, settings: Auto, overrides: Sequence[str], folder: Path, batch_size: int) -> Trial:
    """Runs the case for some steps with this batch. Raises UserError if it fails for another reason than its size."""
    trial_overrides = [
        *overrides, *TRIAL_OVERRIDES, f"fit.max_steps={settings.steps}", f"hp.batch_size={batch_size}",
        f"hp.lr={config.hp.lr}",
    ]  # fmt: skip
    entry_point = str(Path(sys.argv[0]).resolve())
    folder.mkdir(parents=True, exist_ok=True)
    job = SweepJob(
        key=f"batch {batch_size}", overrides=trial_overrides,
        command=python(entry_point, *trial_overrides, *config_options()), cwd=os.getcwd(),
        needs=0 if config.hardware.accelerator == "cpu" else config.trainer.devices,
    )  # fmt: skip
    (trial_folder,) = register_jobs(folder, [job])
    with Status() as status:
        runner = Runner(Slots(parallel=1), status)
        ended = runner.run([trial_folder], {trial_folder: job.command})[trial_folder]
    if runner.interrupts:
        raise SystemExit(130)
    record = record_of(trial_folder)
    reason = ended.reason or ""
    if ended.state == "oom" or TOO_LARGE.search(reason):
        return Trial(batch_size, False, reason=reason)
    if ended.state != "done" or record is None or record.mem is None:
        log = trial_folder / "log.txt"
        raise UserError(f"fix_hp=auto: the trial with batch {batch_size} failed ({reason}); see {log}")
    free, total = record.mem.free_gib, record.mem.total_gib
    fits = free is None or total is None or free >= settings.margin * total
    reason = "" if fits else f"it leaves {free:.2f} of {total:.2f} GiB free"
    used = None if free is None or total is None else total - free
    rate = record.p_core if record.steady is None else record.steady.p_core  # most of a short run is warm-up
    return Trial(batch_size, fits, rate, record.mem.peak_reserved_gib, used, total, reason)


def case_name(config: DictConfig) -> str:
    """Returns the key of a row: model, trainer, precision and device, and a digest of CASE_GROUPS."""
    plain = config.copy()
    plain.hp.batch_size, plain.hp.lr = 1, 1.0
    digest = run_key("train.py", plain, CASE_GROUPS)
    device = device_name(config.hardware.accelerator)
    return f"{config.model.name} {config.trainer.name} {config.precision.name} {device} {digest}"


def device_name(accelerator: str) -> str:
    gpus = [] if accelerator == "cpu" else visible_gpus()
    return (gpu_name(gpus[0]) or gpus[0]) if gpus else "cpu"


def published_row_note(config: TrainConfig) -> str:
    """Returns the hyper-parameters published for the case as a note in parentheses; empty if there are none."""
    file = CONF / "fix_hp" / "max_bs.yaml"
    row = OmegaConf.select(OmegaConf.load(file), f"fix_hp.table.{config.model['name']}.{config.trainer.name}")
    return f" (published: {' '.join(f'{key}={value}' for key, value in row.items())})" if row else ""
