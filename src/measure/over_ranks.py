"""Figures of all ranks: gathered, summed, and their spread."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from src.measure.clock import Clock
from src.measure.rates import raw_times, steady_rates, whole_rates
from src.system import group


def training_figures(clock: Clock, warmup_steps: int) -> dict[str, Any]:
    """Returns rates over all ranks, samples, ranks, and the times of this one, as fields of a record.

    Every rank calls it, when its training has ended.
    """
    evaluation_s = clock.training_phases_s["evaluation"]
    rates = whole_rates(clock.steps, clock.training_s, evaluation_s)
    steady = steady_rates(clock.steps, warmup_steps)
    over_ranks = {name: gather(value) for name, value in rates.items()}
    ranks = len(over_ranks["p_core"])
    if steady:
        for name in ("p_train", "p_core"):
            steady[name] = sum_or_none(gather(steady[name]))
    return {
        **{name: sum_or_none(values) for name, values in over_ranks.items()},
        "steady": steady,
        "samples": int(sum_or_none(gather(float(sum(clock.steps.samples)))) or 0),
        "ranks": ranks,
        "rates_over_ranks": known_of_ranks(over_ranks) if ranks > 1 else None,
        "times": raw_times(clock.steps, warmup_steps, clock.training_s, evaluation_s),
    }


def energy_figures(joules: float | None, samples: float) -> dict[str, Any]:
    """Returns the energy of all ranks' devices, given this rank's. Every rank calls it."""
    total, all_samples = sum_or_none(gather(joules)), sum_or_none(gather(samples))
    if not total or not all_samples:  # 0 joules: the run was too short for the counter's resolution
        return {"energy": None}
    return {"energy": {"joules": total, "samples_per_joule": all_samples / total, "source": "nvml total energy"}}


def worst_memory(peak: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns the peak memory of the fullest device, given this rank's. Every rank calls it."""
    peaks = {name: [v for v in gather(value) if v is not None] for name, value in peak.items()}
    worst = {name: min if name == "free_gib" else max for name in peaks}
    return {name: worst[name](values) if values else None for name, values in peaks.items()}


def gather(value: float | None) -> list[float | None]:
    """Returns the value of every rank, in the order of ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [value]
    if group.is_broken():
        return [value, *[None] * (distributed.get_world_size() - 1)]  # the others' values cannot be gathered
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    tensor = torch.tensor([float("nan") if value is None else value], dtype=torch.float64, device=device)
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor)
    return [None if part.isnan().item() else float(part) for part in parts]


def sum_or_none(values: list[float | None]) -> float | None:
    """Returns the sum over ranks; None if any rank has None."""
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None


def known_of_ranks(rates: Mapping[str, list[float | None]]) -> dict[str, dict[str, float]] | None:
    """Returns min, mean and max over ranks of each rate that is known; None without any, as of a run without a step."""
    over_ranks = {name: min_mean_max(values) for name, values in rates.items()}
    return {name: figures for name, figures in over_ranks.items() if figures is not None} or None


def min_mean_max(values: list[float | None]) -> dict[str, float] | None:
    """Returns min, mean and max of the known values; None if none is known."""
    present = [value for value in values if value is not None]
    return {"min": min(present), "mean": sum(present) / len(present), "max": max(present)} if present else None
