"""One run from config to record: check, build, fit, evaluate, write. Data flows down this page, once."""

import logging
import os
import sys
import traceback
import warnings
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Timer
from pytorch_lightning.trainer.states import TrainerStatus

from src.callbacks.checkpoint import AtomicCheckpointIO, Checkpoint
from src.callbacks.divergence import Divergence
from src.callbacks.held_out import HeldOut
from src.callbacks.hydra_files import HydraFiles
from src.callbacks.legs import Legs
from src.callbacks.loggers import end_wandb, go_on, log_record, settle_loggers
from src.callbacks.measuring import Measuring
from src.callbacks.progress import Progress
from src.callbacks.rng import RngState
from src.callbacks.same_run import SameRun, of_same_run
from src.callbacks.weight_average import TRAINED, WeightAverage
from src.config.complete import complete
from src.config.hydra_files import is_of_a_mistake, run_files
from src.config.instantiate import instantiate
from src.config.resumed import check_same_data, check_same_function, data_choices, function_of
from src.config.schema import TrainConfig
from src.config.settings import given_overrides
from src.config.trained import RUN
from src.datamodules.base import DataModule, SplitDataModule
from src.errors import UserError
from src.launch import failures
from src.launch.devices import begin_products, set_up_devices, without_order
from src.launch.done import limits_reached, record_if_done
from src.launch.ending import Ending, Interrupted
from src.launch.going_on import way_on
from src.launch.restoring import restoring
from src.measure import starting
from src.measure.clock import Clock, run_begin_s
from src.measure.environment import environment, environment_ahead
from src.measure.judged import listed
from src.printable import printable
from src.report.keys import changed_hp, settings
from src.report.record import GoOn, Record, from_figures, write_record
from src.system import group
from src.system.files import sole_run
from src.system.home import SOURCES
from src.system.loading import import_ahead
from src.system.masking import mask_error, masked, masked_text
from src.training.checkpoints import checkpoint_to_resume, compare, read_checkpoint
from src.training.state import check_state
from src.training.task import Task


@dataclass
class Job:
    """What a run is made of."""

    config: TrainConfig
    task: Task
    datamodule: DataModule
    trainer: pl.Trainer
    legs: Legs
    same_run: SameRun
    resumed_from: Path | None = None


def train(config: DictConfig, searched_s: float = 0.0) -> Record:
    """Trains the configured case and writes `result.json`, also when it fails.

    Args:
        searched_s: seconds since the process began that were spent on `fix_hp=auto`; not part of the run.

    Returns the record; that of the run that is resumed where it is done, which is then left as it is. Raises what ended
    the run, after the record is on disk; UserError for what the user can mend.
    """
    quieten()
    clock = Clock(run_begin_s() + searched_s)
    hydra_files, run = run_files(config), settle_loggers(complete(config))
    starting.ended("config")
    status, error, job = "done", None, None
    with Ending() as ending, sole_run(Path(run.output_dir)) if group.rank() == 0 else nullcontext():
        try:
            try:
                job = build(run, clock)
                starting.ended("model")
                if group.rank() == 0:
                    job.trainer.callbacks.append(HydraFiles(hydra_files))  # type: ignore[attr-defined]
                ending.follow(job.trainer, job.task)
                done = fit(job, ending)
            finally:
                ending.hold()
            if done is not None:
                return done
            record = made_record(run, clock, job, status, error)  # with all ranks
        except (Exception, KeyboardInterrupt, SystemExit) as raised:
            mask_error(raised)
            error = without_order(ending.cause_of(raised), run.model["name"])
            status = status_of(error)
            if not ending.with_others:
                ending.fail()
            if status != "interrupted":
                failures.note(raised, described(error))
            if job is not None:
                with suppress(Exception):  # a checkpoint half written would take the record's room on a full disk
                    job.trainer.strategy.checkpoint_io.wait()  # type: ignore[attr-defined]
                with suppress(Exception):  # of a device that is broken; that it is, is known
                    job.task.teardown("fit")  # Lightning leaves it out after an error, and workers would live on
            record = made_record(run, clock, job, status, error)
        if group.rank() == 0:
            try:
                finish(run, job, record, is_begun=bool(record.samples) or not isinstance(error, UserError))
            except UserError:  # a disk that is full for the record too
                if error is None:
                    raise
            end_wandb(status)
    if error is not None:
        raise error
    return record


def quieten() -> None:
    """Keeps a run's print-out to what a person needs: Lightning's tips and notes on what is meant here stay out."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for regex in (".*LeafSpec.*", ".*smaller than the logging interval.*", ".*overridden `transfer_batch_to_device`.*",
                  "Experiment logs directory.*", ".*does not have many workers.*",
                  ".*across ranks is zero.*",
                  ".*`srun` command is available.*"):  # fmt: skip  # of a login node; whether it is needed, is known
        warnings.filterwarnings("ignore", message=regex)


def say_once(line: str) -> None:
    """Prints a line, once per group of ranks."""
    if group.rank() == 0:
        print(printable(masked_text(line)), flush=True)


def build(config: TrainConfig, clock: Clock) -> Job:
    """Returns the parts of a completed config and their trainer. Raises UserError for what cannot be built here."""
    devices, products = set_up_devices(config), begin_products(config)
    pl.seed_everything(group.seed_of_rank(config.seed, group.rank()), verbose=False)
    described = environment_ahead(given_overrides())
    datamodule: DataModule = instantiate(config.datamodule, "datamodule")
    if not os.environ.get("REPRISE_PLAIN_START"):
        datamodule.read_ahead()
    if config.pictures and group.rank() == 0:
        import_ahead("src.report.plots")  # 0.2 s of the end of a run, while weights are drawn
    task: Task = instantiate(config.model["task"], "model.task")
    task.check_datamodule(datamodule)
    datamodule.clock, datamodule.accumulate = clock, config.hp.accumulate
    task.configure(config, clock)
    # Lightning gives them to every logger when training begins.
    task.save_hyperparameters(settings(masked(asdict(config))))
    fit_config = config.fit
    average = [] if fit_config.ema_decay is None else [WeightAverage(fit_config.ema_decay)]
    checks = [RngState(), HeldOut(fit_config.final_evaluation), Divergence()]  # before the average is in the network
    legs = Legs(clock, described())
    same_run = SameRun(function_of(config, task.run_config))
    configured = instantiate(config.callbacks or {}, "callbacks")
    callbacks = [*checks, *average, legs, same_run, *configured.values()]
    is_alone = config.trainer.devices * config.trainer.num_nodes == 1  # other ranks may read what this one writes
    trainer = pl.Trainer(
        accelerator="gpu" if config.hardware.accelerator == "cuda" else "cpu",
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        strategy=devices.strategy,
        plugins=[
            AtomicCheckpointIO(outlasts_fit=fit_config.final_evaluation and is_alone),
            devices.precision,
            *environment_of(group.started_by()),
        ],
        logger=[*instantiate(config.logger or {}, "logger").values()],
        callbacks=callbacks,
        max_epochs=fit_config.max_epochs,
        max_steps=fit_config.max_steps,
        max_time=timedelta(seconds=fit_config.max_time_s) if fit_config.max_time_s else None,
        check_val_every_n_epoch=None if fit_config.eval_every_n_steps else fit_config.eval_every_n_epochs or 1,
        val_check_interval=fit_config.eval_every_n_steps,
        limit_val_batches=1.0 if fit_config.eval_every_n_epochs or fit_config.eval_every_n_steps else 0,
        num_sanity_val_steps=-1 if fit_config.evaluate_first and not config.ckpt_path else 0,
        enable_progress_bar=any(isinstance(c, Progress) for c in callbacks),
        enable_checkpointing=any(isinstance(c, Checkpoint) for c in callbacks),
        enable_model_summary=False,
        use_distributed_sampler=False,
        inference_mode=False,  # Lightning's final evaluation alone would use it, and compile everything anew for it
        log_every_n_steps=config.measure.window,
    )
    if products is not None:
        products.join()
    return Job(config, task, datamodule, trainer, legs, same_run)


def environment_of(launcher: str | None) -> list[ClusterEnvironment]:
    """Returns Lightning's view of the ranks: which takes a shell of SLURM's for a rank, and `srun bash ...` for none.

    Raises UserError where SLURM was not told how many ranks a node has.
    """
    if launcher == "slurm":
        try:
            return [SLURMEnvironment()]
        except RuntimeError as error:
            raise UserError(str(error)) from error
    return [LightningEnvironment()] if launcher is None else []


def fit(job: Job, ending: Ending | None = None) -> Record | None:
    """Trains, then evaluates once more for the final metric, unless the run was asked to end meanwhile.

    Returns None, or without doing any of it the record of the run that is resumed, where that is done.
    """
    ckpt_path = job.resumed_from = checkpoint_to_resume(job.config)
    if ckpt_path is not None:
        checkpoint = read_checkpoint(ckpt_path)
        check_state(checkpoint, ckpt_path, job.trainer, job.datamodule)
        check_resumed(job, checkpoint, ckpt_path)
        limits = limits_reached(checkpoint, ckpt_path, job.trainer, job.task)
        if limits and (record := record_if_done(checkpoint, ckpt_path)):
            folder, steps = ckpt_path.parent.parent, checkpoint["global_step"]
            to_go_on = " and ".join(limits)
            say_once(f"the run in {folder} is done, after {steps} steps, and stays as it is; to go on, give {to_go_on}")
            return record
        if not job.config.ckpt_path:
            say_once(f"resume=true: going on from {ckpt_path}")
        go_on(job.trainer.loggers, checkpoint, ckpt_path)
        job.trainer.num_sanity_val_steps = 0  # the history has the first evaluation
        job.datamodule.prepare_data()
        check_data(job, checkpoint, ckpt_path)
        job.task.trainer = job.trainer  # so that it knows on how many ranks its weights will be
        job.task.bind_data(job.datamodule)
        compare(checkpoint, ckpt_path, job.task)
        if TRAINED in checkpoint and job.config.fit.ema_decay is None:
            raise UserError(f"{ckpt_path} was trained with averaged weights; give fit.ema_decay as it was")
    with restoring(ckpt_path):
        job.trainer.fit(job.task, datamodule=job.datamodule, ckpt_path=ckpt_path, weights_only=True)
    if ending is not None:
        ending.after_training(job.trainer)
    is_evaluated = job.config.fit.final_evaluation and job.trainer.state.status == TrainerStatus.FINISHED
    if is_evaluated:
        job.task.evaluate_last(job.datamodule)
    with job.task.clock.within("checkpoint"):
        job.trainer.strategy.checkpoint_io.wait()  # type: ignore[attr-defined]
    best = next((c.best_path for c in job.trainer.callbacks if isinstance(c, Checkpoint)), None)  # type: ignore[attr-defined]
    if is_evaluated and best is not None:
        job.task.evaluate_best(job.datamodule, best)
    return None


def check_resumed(job: Job, checkpoint: dict[str, Any], path: Path) -> None:
    """Raises UserError where a checkpoint is of another function, datamodule, seed or batch that is not accepted."""
    trained = of_same_run(checkpoint, "function") or data_choices(checkpoint.get(RUN))
    accept, here = job.config.accept_changes, job.same_run.function
    if note := check_same_function(trained, here, path, way_out_of(job), accept):
        say_once(f"note: {note}")


def check_data(job: Job, checkpoint: dict[str, Any], path: Path) -> None:
    """Raises UserError where a checkpoint was trained with other samples that are not accepted."""
    trained, here = of_same_run(checkpoint, "data"), job.datamodule.fingerprint()
    job.same_run.data = here
    if note := check_same_data(trained, here, path, way_out_of(job), job.config.accept_changes):
        say_once(f"note: {note}")


def way_out_of(job: Job) -> str:
    """Returns what else than the same settings is possible for a run that is resumed."""
    instead = "name another checkpoint with ckpt_path=FILE, or start anew without resume=true"
    return "start anew without ckpt_path" if job.config.ckpt_path else instead


def status_of(error: BaseException) -> str:
    if failures.is_out_of_memory(error):
        return "oom"
    return "interrupted" if isinstance(error, Interrupted) else "failed"


def made_record(config: TrainConfig, clock: Clock, job: Job | None, status: str, error: BaseException | None) -> Record:
    """Returns the record of this run, with its figures unless the device that failed it gives no more."""
    try:
        return make_record(config, clock, job, status, error)
    except Exception:
        if error is None:
            raise
        record = make_record(config, clock, None, status, error)
        if job is None:
            return record
        return replace(record, run=job.legs.run, go_on=GoOn(**go_on_of(config, job, status) or {}))


def make_record(config: TrainConfig, clock: Clock, job: Job | None, status: str, error: BaseException | None) -> Record:
    """Returns the record of this run, complete except for what a failed run never measured."""
    fields: dict[str, Any] = {"unit": "samples"}
    if job is not None:
        for callback in reversed(job.trainer.callbacks):  # type: ignore[attr-defined] # phases begin first and end last
            if isinstance(callback, Measuring):
                fields |= callback.figures(job.task)
        reading = job.datamodule.reading
        fields |= {"unit": job.task.unit, "final_metric": job.task.final_figure}
        fields |= {"reading": asdict(reading) if reading else None, "classes": listed(job.task.class_figures)}
    fields |= {"e2e_time_s": clock.wall_s()} if job is None else job.legs.total(job.trainer, fields, status)
    fields |= {
        "kind": "train",
        "case": case_of(config, batch_size_of(job) if job is not None else None),
        "status": status,
        "error": None if error is None else described(error),
        "config": asdict(config),
        "go_on": go_on_of(config, job, status),
        "environment": environment(given_overrides()) if job is None else job.legs.environment,
    }
    return from_figures(fields)


def go_on_of(config: TrainConfig, job: Job | None, status: str) -> dict[str, Any] | None:
    """Returns the record's `go_on`; None for a run that is done, and has not ended for the limit of its time."""
    timers = [c for c in job.trainer.callbacks if isinstance(c, Timer)] if job else []  # type: ignore[attr-defined]
    time_is_up = any((timer.time_remaining() or 1.0) <= 0 for timer in timers)
    if status == "done" and not time_is_up:
        return None
    saved = [c.last_path for c in job.trainer.callbacks if isinstance(c, Checkpoint)] if job else []  # type: ignore[attr-defined]
    paths = [path for path in (*saved, job.resumed_from if job else None) if path is not None and path.exists()]
    return way_on(config, paths[0] if paths else None, time_is_up)


def batch_size_of(job: Job) -> int:
    """Returns `hp.batch_size`, or what it became for a smaller training split."""
    if not isinstance(job.datamodule, SplitDataModule):
        return job.config.hp.batch_size
    return job.datamodule.batch_size * (job.trainer.world_size if job.config.hp.batch_per == "global" else 1)


def case_of(config: TrainConfig, batch_size: int | None = None) -> dict[str, Any]:
    """Returns the record's case."""
    batch_size = batch_size or config.hp.batch_size
    return {
        "model": config.model["name"],
        "datamodule": config.datamodule["name"],
        "trainer": config.trainer.name,
        "precision": config.precision.name,
        "fix_hp": changed_hp(asdict(config), batch_size),
        "hardware": config.hardware.name,
        "batch_size": batch_size,
        "batch_per": config.hp.batch_per,
    }


def described(error: BaseException) -> dict[str, Any]:
    """Returns the error's type, message without secrets, and innermost line of this project."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(SOURCES)]
    where = f"{Path(frames[-1].filename).relative_to(SOURCES.parent)}:{frames[-1].lineno}" if frames else None
    return {"type": type(error).__name__, "message": masked_text(str(error).strip())[:2000], "where": where}


def finish(config: TrainConfig, job: Job | None, record: Record, is_begun: bool = True) -> None:
    """Writes the record and its pictures and prints what a person wants to know.

    Args:
        is_begun: False after a mistake that ended the run before its first step: its one line says enough.
    """
    from src.report.text import summary

    folder = Path(config.output_dir)
    files = {"record": folder / "result.json"}
    has_step = is_begun and (bool(record.samples) or record.status != "interrupted")
    if has_step or not files["record"].exists() or is_of_a_mistake(files["record"]):  # else of an earlier run
        write_record(record, files["record"])
    if is_begun and config.pictures:
        files |= pictures_of(folder, record, job)
    if job is not None:
        files |= job.task.artifacts
        log_record(job.trainer.loggers, record, files)
    if not is_begun:
        return
    if config.note:
        say_once(f"note: {config.note}")
    print(printable(summary(record, files)), file=sys.stdout, flush=True)


def pictures_of(folder: Path, record: Record, job: Job | None) -> dict[str, Path]:
    """Draws the pictures of a run. One that did not end well may end without them, which a line says."""
    try:
        from src.report.plots import run_pictures

        return run_pictures(folder, record, job.task.curves if job is not None else ())
    except Exception as error:  # an import that a signal has ended cannot be repeated
        if record.status == "done":
            raise
        say_once(f"note: no pictures of this run ({type(error).__name__}: {error})")
        return {}
