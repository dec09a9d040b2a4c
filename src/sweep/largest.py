"""`+fix_hp=auto`: the largest batch that fits, by short runs of it in processes of their own, on every rank.

From the case's own batch it goes to four times as much until a run does not fit (or halves until one does), then
bisects to within 1/16; what two runs that fit have used says where to look next.
A run fits where it ends well and left `margin` of its fullest device's memory to nobody at the peak: what other
processes and libraries hold counts. Trials keep the case's learning rate; the one that is trained with grows by
`lr_rule`. Every trial leaves its record under RUN/fix_hp.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from src.config.settings import check_training
from src.errors import UserError
from src.sweep.gpus import model_name, visible_gpus
from src.sweep.identity import enrol, key_of
from src.sweep.job import Job
from src.sweep.launcher import gpus_of
from src.sweep.outcome import record_of
from src.sweep.runner import Runner, Slots
from src.sweep.status import Status
from src.system.files import locked, write_text
from src.system.group import started_by

POWERS = {"keep": 0.0, "sqrt": 0.5, "linear": 1.0}
SURE = 0.98  # of the batch that memory seems to suffice for
GROWTH = 4  # times what fits is the next one to try, at most
RESOLUTION = 16  # the search ends when the batch is known to within this part of it
TRIAL = (
    "callbacks=bare", "logger=none", "pictures=false", "fit.eval_every_n_epochs=null", "fit.eval_every_n_steps=null",
    "fit.evaluate_first=false", "fit.final_evaluation=false",
)  # fmt: skip
NOT_OF_A_TRIAL = (
    "fix_hp", "hp.batch_size", "hp.lr", "callbacks=", "~callbacks", "logger", "pictures", "output_dir", "resume",
    "ckpt_path", "fit.max_steps",
)  # fmt: skip
WHAT_FITS_DEPENDS_ON = ("model", "datamodule", "trainer", "precision", "hardware", "execution", "fix_hp", "seed")
TOO_LARGE = re.compile(r"on (\d+) rank\(s\) is larger than the training split of (\d+)")


@dataclass(frozen=True)
class Trial:
    """A batch that was tried: whether it fits, samples per second of computing in steady steps, or in all if it had
    none, GiB of the fullest device.
    """

    batch_size: int
    fits: bool
    p_core: float | None = None
    mem_gib: float | None = None
    used_gib: float | None = None  # by whomever
    total_gib: float | None = None
    why: str = ""


def settle_batch(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Returns the config with `hp` as found, for `fix_hp=auto`; any other as it is. Runs before the process uses a GPU.

    Args:
        overrides: the command line of the run.
    """
    if config.fix_hp is None or config.fix_hp.name != "auto":
        return config
    check_training(config)
    asked = config.fix_hp
    if asked.lr_rule not in POWERS or asked.choose not in ("batch_size", "p_core"):
        raise UserError(f"fix_hp: lr_rule is one of {', '.join(POWERS)}, and choose is batch_size or p_core")
    if not isinstance(asked.multiple, int) or asked.multiple < 1:
        raise UserError(f"fix_hp.multiple={asked.multiple}: give a whole number of 1 or more")
    file, case = Path(asked.file), case_name(config)
    row = rows_of(file).get(case)
    if row is None:
        if started_by() is not None:  # ranks that this project started itself find the row
            raise UserError(
                "fix_hp=auto starts its trials itself: run it without torchrun or srun, or give hp.batch_size"
            )
        row = search(config, [text for text in overrides if not text.lstrip("+").startswith(NOT_OF_A_TRIAL)])
        with locked(file.with_suffix(".lock")):  # other cases may be found at the same time
            write_text(file, "# What fix_hp=auto found.\n" + OmegaConf.to_yaml(rows_of(file) | {case: row}))
    config.hp.batch_size, config.hp.lr = row["batch_size"], row["lr"]
    if started_by() is None:
        found = f"hp.batch_size={config.hp.batch_size} hp.lr={config.hp.lr:g}"
        print(f"fix_hp=auto: {found}{published(config)}; {file}", flush=True)
    return config


def rows_of(file: Path) -> dict[str, Any]:
    """What was found, by case. Raises UserError for a file that says something else."""
    if not file.exists():
        return {}
    try:
        rows: Any = OmegaConf.to_container(OmegaConf.load(file))
        assert all({"batch_size", "lr"} <= row.keys() for row in rows.values())
        return rows
    except (YAMLError, AttributeError, AssertionError):
        raise UserError(f"{file}: not what fix_hp=auto wrote; delete it, or give another fix_hp.file") from None


def search(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The row of this case: batch, learning rate, and the figures of the trial that it was chosen by."""
    asked, usual = config.fix_hp, config.hp
    world = config.trainer.num_nodes * config.trainer.devices
    unit = asked.multiple * (world if usual.batch_per == "global" else 1)
    if asked.most is not None and asked.most < unit:
        raise UserError(f"fix_hp.most={asked.most} is below {unit}, the least that is tried; lower fix_hp.multiple")
    folder = Path(config.output_dir) / "fix_hp"
    trials: dict[int, Trial] = {}

    def fits(batch_size: int) -> bool:
        if batch_size not in trials:
            trials[batch_size] = run_trial(config, overrides, folder, batch_size)
        return trials[batch_size].fits

    def most() -> int | None:
        known = [asked.most, *(samples_in(trial.why, usual.batch_per) for trial in trials.values())]
        return min((limit for limit in known if limit is not None), default=None)

    largest(usual.batch_size, unit, fits, lambda: foreseen([*trials.values()], asked.margin), most)
    good = [trial for trial in trials.values() if trial.fits]
    if not good:
        raise UserError(f"fix_hp=auto: no batch fits, not even {min(trials)}: {trials[min(trials)].why}")
    best = max(good, key=lambda trial: trial.batch_size if asked.choose == "batch_size" else trial.p_core or 0.0)
    lr = usual.lr * (best.batch_size / usual.batch_size) ** POWERS[asked.lr_rule]
    return {
        "batch_size": best.batch_size, "batch_per": usual.batch_per, "lr": float(f"{lr:.6g}"), "p_core": best.p_core,
        "mem_gib": best.mem_gib, "tried": sorted(trials), "records": str(folder),
    }  # fmt: skip


def foreseen(trials: Sequence[Trial], margin: float) -> float | None:
    """The batch that memory suffices for if more of it is used as between the two largest that fit; None: unknown."""
    known = sorted((t.batch_size, t.used_gib, t.total_gib) for t in trials if t.fits and t.used_gib and t.total_gib)
    if len(known) < 2:
        return None
    (less, less_gib, _), (more, more_gib, total_gib) = known[-2:]
    a_sample_gib = (more_gib - less_gib) / (more - less)
    return more + ((1 - margin) * total_gib - more_gib) / a_sample_gib if a_sample_gib > 0 else None


def samples_in(reason: str, batch_per: str) -> int | None:
    """The largest batch that a training split has, of a device or of all, where `reason` says that one is larger."""
    if (found := TOO_LARGE.search(reason)) is None:
        return None
    ranks, samples = map(int, found.groups())
    return samples if batch_per == "global" else samples // ranks


def largest(
    usual: int,
    unit: int,
    fits: Callable[[int], bool],
    foresee: Callable[[], float | None] = lambda: None,
    most: Callable[[], int | None] = lambda: None,
) -> int | None:
    """The largest multiple of `unit` that fits, to within 1/RESOLUTION; None where not even `unit` does.

    Args:
        foresee: what memory may suffice for, as far as is known by now; `most`: what is not exceeded, likewise.
    """

    def allowed(size: int) -> int:
        limit = most()
        return size if limit is None else min(size, max(unit, limit // unit * unit))

    good, size = 0, allowed(max(unit, usual // unit * unit))
    while fits(size):
        good, expected = size, foresee()
        size = GROWTH * good
        if expected is not None:  # a little less than that, and never nothing more
            size = int(min(SURE * expected, size)) // unit * unit
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
        if (limit := allowed(bad)) + unit < bad:  # the data end there: all of them may fit
            bad, size = limit + unit, limit
            if size == good:
                break
        if fits(size):
            good = size
        else:
            bad = size
    return good or None


def run_trial(config: DictConfig, overrides: Sequence[str], folder: Path, batch_size: int) -> Trial:
    """Runs the case for some steps with this batch. Raises UserError where something else than its size fails it."""
    given = [
        *overrides, *TRIAL, f"fit.max_steps={config.fix_hp.steps}", f"hp.batch_size={batch_size}",
        f"hp.lr={config.hp.lr}",
    ]  # fmt: skip
    door = str(Path(sys.argv[0]).resolve())
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(
        key=f"batch {batch_size}", overrides=given, command=[sys.executable, door, *given], cwd=os.getcwd(),
        needs=gpus_of(config),
    )  # fmt: skip
    (place,) = enrol(folder, [job])
    with Status() as status:
        runner = Runner(Slots(parallel=1), status)
        ended = runner.run([place], {place: job.command})[place]
    if runner.asked:
        raise SystemExit(130)
    record = record_of(place)
    reason = ended.reason or ""
    if ended.state == "oom" or TOO_LARGE.search(reason):
        return Trial(batch_size, False, why=reason)
    if ended.state != "done" or record is None or record.mem is None:
        raise UserError(f"fix_hp=auto: the trial with batch {batch_size} failed ({reason}); see {place / 'log.txt'}")
    free, total = record.mem.free_gib, record.mem.total_gib
    fits = free is None or total is None or free >= config.fix_hp.margin * total
    why = "" if fits else f"it leaves {free:.2f} of {total:.2f} GiB free"
    used = None if free is None or total is None else total - free
    rate = record.p_core if record.steady is None else record.steady.p_core  # a short run is mostly its beginning
    return Trial(batch_size, fits, rate, record.mem.peak_reserved_gib, used, total, why)


def case_name(config: DictConfig) -> str:
    """Model, topology, precision and device for the eye, and a digest of all that it depends on."""
    plain = config.copy()
    plain.hp.batch_size, plain.hp.lr = 1, 1.0
    digest = key_of("train.py", plain, WHAT_FITS_DEPENDS_ON)
    return f"{config.model.name} {config.trainer.name} {config.precision.name} {device_name(config)} {digest}"


def device_name(config: DictConfig) -> str:
    gpus = [] if config.hardware.accelerator == "cpu" else visible_gpus()
    return (model_name(gpus[0]) or gpus[0]) if gpus else "cpu"


def published(config: DictConfig) -> str:
    """The published row of the case, where there is one."""
    file = Path(__file__).resolve().parents[2] / "conf" / "fix_hp" / "max_bs.yaml"
    row = OmegaConf.select(OmegaConf.load(file), f"fix_hp.table.{config.model.name}.{config.trainer.name}")
    return f" (published: {' '.join(f'{key}={value}' for key, value in row.items())})" if row else ""
