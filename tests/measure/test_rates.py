"""Rates, percentiles and rooflines against numbers computed by hand."""

from array import array

import pytest
import torch

from src.measure.clock import StepTimes
from src.measure.cpu_peaks import measured
from src.measure.rates import steady_rates, token_rates, whole_rates
from src.measure.roofline import Peaks, peaks_of, utilisation
from src.measure.statistics import percentiles
from src.report.record import Utilisation


def steps(*iterations: float, compute: float = 0.5, samples: int = 10) -> StepTimes:
    n = len(iterations)
    return StepTimes(array("d", iterations), array("d", [compute] * n), array("q", [samples] * n))


def test_each_rate_has_its_own_denominator() -> None:
    rates = whole_rates(steps(1.0, 1.0), training_s=5.0, evaluation_s=1.0)
    assert rates == {"p_whole": 4.0, "p_train": 5.0, "p_core": 20.0}


def test_without_samples_rates_are_none() -> None:
    assert whole_rates(StepTimes(), 1.0, 0.0) == {"p_whole": None, "p_train": None, "p_core": None}


def test_the_rates_of_a_rank_whose_steps_had_no_samples_are_0() -> None:
    """So that the sum over ranks is that of the others."""
    assert whole_rates(steps(1.0, samples=0), 2.0, 0.0) == {"p_whole": 0.0, "p_train": 0.0, "p_core": 0.0}


def test_tokens_per_sample_and_per_second() -> None:
    assert token_rates(real=300, processed=400, samples=20, rate=2.0) == {
        "real_per_sample": 15.0,
        "processed_per_sample": 20.0,
        "padding_share": 0.25,
        "real_per_s": 30.0,
        "processed_per_s": 40.0,
    }
    assert token_rates(0, 0, 20, 2.0) is None


def test_steady_rates_exclude_the_warm_up() -> None:
    rates = steady_rates(steps(9.0, 9.0, 1.0, 1.0, 2.0), warmup_steps=2)
    assert rates is not None
    assert rates["p_train"] == pytest.approx(30 / 4)
    assert rates["p_core"] == pytest.approx(30 / 1.5)
    assert rates["step_time_s"]["p50"] == 1.0
    assert steady_rates(steps(1.0), warmup_steps=1) is None


def test_percentiles_interpolate() -> None:
    summary = percentiles([float(i) for i in range(101)], mean=True)
    assert summary == {"mean": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
    assert percentiles([]) is None


def test_utilisation_is_the_share_of_the_peaks() -> None:
    shares = utilisation(100.0, flops=2e9, nbytes=1e6, peaks=Peaks(1e12, 1e9, "datasheet"))
    assert shares is not None
    assert shares["flops_per_s"] == 2e11
    assert shares["of_peak_flops"] == pytest.approx(0.2)
    assert shares["of_peak_bandwidth"] == pytest.approx(0.1)
    assert utilisation(None, 1, 1, Peaks(1, 1, "datasheet")) is None


def test_the_peak_depends_on_the_precision() -> None:
    table = {"fp32": 1e12, "fp16": 8e12}
    assert peaks_of("amp", table, 5.0, "cuda") == Peaks(8e12, 5.0, "datasheet")
    assert peaks_of("tf32", table, 5.0, "cuda").flops_per_s is None


def test_a_gpu_without_a_datasheet_is_not_compared_with_the_cpu() -> None:
    unknown = peaks_of("amp", {}, None, "cuda")
    assert unknown == Peaks(None, None, "unknown")
    shares = utilisation(100.0, flops=2e9, nbytes=1e6, peaks=unknown)
    assert shares is not None and shares["of_peak_flops"] is None and shares["of_peak_bandwidth"] is None


def test_measured_peaks_are_plausible() -> None:
    flops_per_s, bytes_per_s = measured(torch.float32, size=256, copy_mib=16)
    assert 1e8 < flops_per_s < 1e14
    assert 1e8 < bytes_per_s < 1e13


def test_a_share_above_the_peak_is_none() -> None:
    shares = utilisation(100.0, flops=2e9, nbytes=1e6, peaks=Peaks(1e11, 1e8, "measured"))
    assert shares is not None and shares["of_peak_flops"] is None and shares["of_peak_bandwidth"] == 1.0
    assert Utilisation(**shares).impossible == ["peak FLOP/s"]  # type: ignore[arg-type]
