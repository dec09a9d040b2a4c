"""Samples per second over three times (FlagPerf's p_whole, p_train, p_core), and after warm-up."""

from typing import Any

from src.measure.clock import StepTimes
from src.measure.raw_times import packed
from src.measure.statistics import percentiles


def ratio(samples: float, seconds: float) -> float | None:
    """Returns samples per second; None without time."""
    return samples / seconds if seconds > 0 else None


def raw_times(steps: StepTimes, warmup_steps: int, training_s: float, evaluation_s: float) -> dict[str, Any] | None:
    """Returns what the rates of one rank are computed from, as `Times` of its record; None without a finished step."""
    if not len(steps):
        return None
    steady = len(steps) > warmup_steps
    return {
        "samples": sum(steps.samples),
        **{"whole_s": training_s, "evaluation_s": evaluation_s, "compute_s": sum(steps.compute_s)},
        "steady_samples": sum(steps.samples[warmup_steps:]),
        "iteration": packed(steps.iteration_s[warmup_steps:]) if steady else None,
        "compute": packed(steps.compute_s[warmup_steps:]) if steady else None,
    }


def token_rates(real: float, processed: float, samples: float, rate: float | None) -> dict[str, float | None] | None:
    """Returns tokens per sample, and per second at `rate` samples per second; None without samples or tokens.

    Real tokens are those of the samples; processed tokens include padding.
    """
    if not (samples and processed):
        return None
    return {
        "real_per_sample": real / samples,
        "processed_per_sample": processed / samples,
        "padding_share": 1 - real / processed,
        "real_per_s": rate and rate * real / samples,
        "processed_per_s": rate and rate * processed / samples,
    }


def whole_rates(steps: StepTimes, training_s: float, evaluation_s: float) -> dict[str, float | None]:
    """Returns p_whole, p_train and p_core of one rank, in samples per second; None without a finished step.

    p_whole: trained samples / time from the first training step to the end of training, evaluation included.
    p_train: the same without evaluation. p_core: trained samples / compute with its exposed communication.
    """
    if not len(steps):
        return dict.fromkeys(("p_whole", "p_train", "p_core"))
    samples = sum(steps.samples)
    return {
        "p_whole": ratio(samples, training_s),
        "p_train": ratio(samples, training_s - evaluation_s),
        "p_core": ratio(samples, sum(steps.compute_s)),
    }


def steady_rates(steps: StepTimes, warmup_steps: int) -> dict[str, Any] | None:
    """Returns the rates after `warmup_steps` steps, with percentiles of the iteration time; None if no step is left.

    p_train counts iterations (fetch, transfer, compute, other) and leaves evaluation and checkpoints out.
    """
    if len(steps) <= warmup_steps:
        return None
    iteration, compute = steps.iteration_s[warmup_steps:], steps.compute_s[warmup_steps:]
    samples = sum(steps.samples[warmup_steps:])
    return {
        "p_train": ratio(samples, sum(iteration)),
        "p_core": ratio(samples, sum(compute)),
        "step_time_s": percentiles(iteration),
    }
