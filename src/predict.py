"""One prediction from config to record: load, predict or time batches, write the predictions and the record."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from hydra.utils import get_class
from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger

from src.callbacks.loggers import end_wandb, log_record, settle_loggers
from src.config.complete import complete_prediction
from src.config.hydra_files import run_files, save_run
from src.config.instantiate import instantiate
from src.config.schema import PredictConfig
from src.config.settings import given_overrides
from src.config.trained import RUN, has_trained_data
from src.datamodules.base import SplitDataModule
from src.errors import UserError
from src.launch.devices import set_execution, set_precision, without_order
from src.launch.failures import is_out_of_memory
from src.measure.clock import Clock, run_begin_s
from src.measure.environment import environment
from src.measure.judged import listed
from src.measure.memory import peak_memory
from src.measure.rates import ratio, token_rates
from src.measure.raw_times import packed
from src.measure.roofline import peaks_of, utilisation
from src.measure.statistics import percentiles
from src.printable import printable
from src.report.keys import settings
from src.report.record import Record, from_figures, write_record
from src.report.text import summary
from src.run import described
from src.system.files import check_writable, sole_run
from src.system.masking import mask_error, masked
from src.trained import load_task, with_trained_model
from src.training.checkpoints import naming_version, read_checkpoint
from src.training.prediction import Prediction, PredictionJob
from src.training.predictor import in_precision
from src.training.task import Task, wanted


def predict(config: DictConfig, overrides: Sequence[str] | None = None) -> Record:
    """Predicts as configured and writes the predictions and `result.json`; returns the record.

    Args:
        overrides: those that the config was composed with; the command line's if not given. They come before what
            the checkpoint says of its training.

    Raises what ended it, after the record is on disk; UserError for what the user can mend. A checkpoint that cannot be
    read leaves no record.
    """
    clock = Clock(run_begin_s())
    overrides = given_overrides() if overrides is None else overrides
    checkpoint = read_checkpoint(Path(config.ckpt_path)) if config.ckpt_path else None
    hydra_files = run_files(config)
    with naming_version(checkpoint):
        completed = complete_prediction(config, (checkpoint or {}).get(RUN), overrides)
    if completed.output:
        check_writable(Path(completed.output).parent)
    with sole_run(Path(completed.output_dir)):
        return predict_completed(settle_loggers(completed), checkpoint, overrides, clock, hydra_files)


def predict_completed(
    config: PredictConfig,
    checkpoint: dict[str, Any] | None,
    overrides: Sequence[str],
    clock: Clock,
    hydra_files: dict[Path, str],
) -> Record:
    """Does what `predict` does, with a completed config, its checkpoint, the clock of the command and Hydra's files."""
    files = {"record": Path(config.output_dir) / "result.json"}
    figures: dict[str, Any] = {"unit": "samples", "status": "done", "error": None}
    error: BaseException | None = None
    loggers: list[Logger] = []
    try:
        loggers = begin_loggers(config)
        with naming_version(checkpoint):
            config = with_trained_model(config, checkpoint, overrides)
        set_precision(config.precision, config.hardware.accelerator)
        set_execution(config.execution, config.hardware.accelerator)
        pl.seed_everything(config.seed, verbose=False)
        with naming_version(checkpoint):
            task = load_task(config, checkpoint)
        clock.mark("startup")
        job = make_job(task, config, (checkpoint or {}).get(RUN), overrides)
        if config.evaluate:
            jobs = by_split(job, config)
            prediction = combined(
                {split: run_batches(task, split_job, config, clock) for split, split_job in jobs.items()}
            )
        else:
            prediction = run_batches(task, job, config, clock)
        save_run(hydra_files)
        files |= prediction.files
        if config.output and not prediction.files:
            print(f"{config.output} was not written: {config.model['name']} gives figures alone with these options")
        figures |= figures_of(task, config, prediction)
    except (Exception, KeyboardInterrupt) as raised:
        mask_error(raised)
        error = without_order(raised, config.model["name"])
        interrupted = isinstance(raised, KeyboardInterrupt)
        status = "oom" if is_out_of_memory(raised) else "interrupted" if interrupted else "failed"
        figures |= {"status": status, "error": described(error)}
    clock.mark("other")
    record = from_figures(
        figures
        | {
            "kind": "predict",
            "case": case_of(config),
            "phases_s": {**clock.totals_s, "wall": clock.marked_s()},
            "config": asdict(config),
            "environment": environment(given_overrides()),
            "e2e_time_s": clock.wall_s(),
        }
    )
    write_record(record, files["record"])
    log_record(loggers, record, files)
    end_wandb(record.status)
    if not isinstance(error, UserError):  # its one line says enough
        print(printable(summary(record, files)), flush=True)
    if error is not None:
        raise error
    return record


def begin_loggers(config: PredictConfig) -> list[Logger]:
    """Returns the configured loggers, each with its run begun. Raises UserError where one refuses to begin it."""
    loggers = [*instantiate(config.logger or {}, "logger").values()]
    for logger in loggers:
        _ = logger.experiment
        logger.log_hyperparams(settings(masked(asdict(config))))
    return loggers


def make_job(task: Task, config: PredictConfig, trained: Any, overrides: Sequence[str]) -> PredictionJob:
    """Returns what the task is asked to do; `trained` and `overrides` are those of `as_trained`."""
    return PredictionJob(
        num_samples=config.num_samples,
        batch_size=config.batch_size,
        benchmark=config.benchmark,
        warmup_batches=config.warmup_batches,
        output=Path(config.output) if config.output else Path(config.output_dir) / task.predictions_name,
        graph=wanted(config.execution.graph, task.device.type == "cuda"),
        datamodule=partial(instantiate, config.datamodule, "datamodule"),
        options=instantiate(config.model.get("predict"), "model.predict"),
        has_trained_data=has_trained_data(config, trained),
        given=overrides,
    )


def by_split(job: PredictionJob, config: PredictConfig) -> dict[str, PredictionJob]:
    """Returns a job by split with known labels: train, then those of validation and test."""
    data = get_class(config.datamodule["_target_"])
    if config.benchmark or not issubclass(data, SplitDataModule):
        raise UserError("evaluate=true compares the splits of the data; leave it out to time or to predict other files")
    jobs = {}
    for split in dict.fromkeys(("train", data.val_split, data.test_split)):
        choice = {"predict": split} if "predict" in config.datamodule else {}
        output = job.output.with_name(f"{job.output.stem}_{split}{job.output.suffix}")
        jobs[split] = replace(job, split=split, output=output, datamodule=partial(job.datamodule, **choice))
    return jobs


def combined(parts: dict[str, Prediction]) -> Prediction:
    """Returns the predictions of several splits as one; metric, classes and calibration are those of the last split."""
    return Prediction(
        samples=sum(part.samples for part in parts.values()),
        latencies_s=[],
        files={f"{what} ({split})": path for split, part in parts.items() for what, path in part.files.items()},
        final_metric=list(parts.values())[-1].final_metric,
        quality=[figure._replace(group=split) for split, part in parts.items() for figure in part.quality],
        classes=list(parts.values())[-1].classes,
        calibration=list(parts.values())[-1].calibration,
        reading=next((part.reading for part in parts.values() if part.reading), None),
    )


def run_batches(task: Task, job: PredictionJob, config: PredictConfig, clock: Clock) -> Prediction:
    """Lets the task predict, under the configured precision."""
    if wanted(config.execution.compile, config.benchmark and task.device.type == "cuda"):  # it takes a minute
        task.compile_network()
    with in_precision(task.device, config.precision.lightning):
        return task.predict(job, clock)


def figures_of(task: Task, config: PredictConfig, prediction: Prediction) -> dict[str, Any]:
    """Returns what was found, and of a benchmark what was measured, as fields of the record."""
    figures = {
        "unit": task.unit,
        "samples": prediction.samples,
        "final_metric": prediction.final_metric,
        "quality": [figure._asdict() for figure in prediction.quality],
        "classes": listed(prediction.classes),
        "calibration": [asdict(group) for group in prediction.calibration] or None,
        "mem": peak_memory(task.device),
        "reading": asdict(prediction.reading) if prediction.reading else None,
    }
    return figures | speed_of(task, config, prediction) if config.benchmark else figures


def speed_of(task: Task, config: PredictConfig, prediction: Prediction) -> dict[str, Any]:
    """Returns what a benchmark measured, as fields of the record."""
    rate, with_loading = ratio(prediction.samples, sum(prediction.latencies_s)), None
    if prediction.loaded_latencies_s is not None:
        with_loading = {
            "throughput": ratio(prediction.samples, sum(prediction.loaded_latencies_s)),
            "latency_s": percentiles(prediction.loaded_latencies_s, mean=True),
        }
    cost = task.cost()
    hardware = config.hardware
    peaks = peaks_of(
        config.precision.name, hardware.peak_flops, hardware.peak_bandwidth, accelerator=task.device.type,
        reached=((rate or 0.0) * cost.flops_forward, (rate or 0.0) * cost.bytes_forward),
    )  # fmt: skip
    return {
        "throughput": rate,
        "latency_s": percentiles(prediction.latencies_s, mean=True),
        "with_loading": with_loading,
        "times": {
            "samples": prediction.samples,
            "latency": packed(prediction.latencies_s),
            "loaded": prediction.loaded_latencies_s and packed(prediction.loaded_latencies_s),
        },
        "tokens": token_rates(*prediction.tokens, prediction.samples, rate) if prediction.tokens else None,
        "utilisation": utilisation(rate, cost.flops_forward, cost.bytes_forward, peaks),
    }


def case_of(config: PredictConfig) -> dict[str, Any]:
    return {
        "model": config.model["name"],
        "datamodule": config.datamodule["name"],
        "trainer": "1x1",
        "precision": config.precision.name,
        "fix_hp": "/",
        "hardware": config.hardware.name,
        "batch_size": config.batch_size,
        "batch_per": "device",
    }
