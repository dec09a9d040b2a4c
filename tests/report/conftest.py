"""Small records with invented figures, all different."""

from pathlib import Path

import pytest

from src.measure.reading import Reading
from src.report.record import (
    Case,
    Energy,
    Latency,
    Memory,
    Percentiles,
    ReachedMetric,
    Record,
    RunError,
    Steady,
    Utilisation,
    write_record,
)


@pytest.fixture
def case() -> Case:
    return Case(
        model="moflow",
        datamodule="zinc250k",
        trainer="1x1",
        precision="amp",
        fix_hp="/",
        hardware="h200",
        batch_size=512,
        batch_per="device",
    )


@pytest.fixture
def trained(case: Case) -> Record:
    return Record(
        kind="train",
        case=case,
        status="done",
        unit="molecules",
        e2e_time_s=244.06,
        p_whole=9100.2,
        p_train=9876.6,
        p_core=10321.9,
        steady=Steady(p_train=10200.4321, p_core=10400.1, step_time_s=Percentiles(p50=0.05, p90=0.051, p99=0.061)),
        final_metric=ReachedMetric(name="nuv", value=80.314, target=87.9, reached=False),
        mem=Memory(peak_reserved_gib=8.1234, peak_allocated_gib=7.4, total_gib=139.8),
        phases_s={"startup": 12.0, "fetch": 8.0, "compute": 160.0, "evaluation": 18.0, "wall": 200.0},
        utilisation=Utilisation(of_peak_flops=0.034),
        energy=Energy(joules=90_000, samples_per_joule=24.9, source="NVML"),
        samples=2_245_680,
        ranks=1,
        rates_over_ranks={"p_core": {"min": 10321.9, "mean": 10321.9, "max": 10321.9}},
        config={"seed": 1, "hp": {"lr": 5e-4}, "callbacks": [None, True, "x"]},
        environment={"gpu": "H200"},
        history=[{"step": 20, "epoch": 0, "loss": 1.5}, {"step": 40, "epoch": 0, "loss": 1.25, "nuv": 61.0}],
    )


@pytest.fixture
def predicted(case: Case) -> Record:
    return Record(
        kind="predict",
        case=case,
        status="done",
        unit="molecules",
        throughput=13333.3,
        latency_s=Latency(mean=0.0384, p50=0.038, p90=0.039, p95=0.0395, p99=0.0412),
        mem=Memory(peak_reserved_gib=3.25, total_gib=139.8),
    )


@pytest.fixture
def out_of_memory(case: Case) -> Record:
    return Record(
        kind="train",
        case=case,
        status="oom",
        unit="molecules",
        error=RunError(type="OutOfMemoryError", message="CUDA out of memory.\nTried 2 GiB", where="step 3"),
    )


@pytest.fixture
def run_folder(tmp_path: Path, trained: Record) -> Path:
    """A run folder that holds the training record."""
    folder = tmp_path / "run"
    write_record(trained, folder / "result.json")
    return folder


@pytest.fixture
def reading() -> Reading:
    """What became of 447 invented molecules."""
    report = Reading("own.smi", "molecules", read=447, notes=["delimiter ';'"])
    for number in range(4):
        report.change(["charge removed"], f"line {number}: 'C[O-]' -> 'CO'")
    report.change(["stereo removed", "isotope removed"], "line 9: '[2H][C@H](C)O' -> 'CCO'")
    report.drop("no molecule", "line 5: 'xyz'", 20)
    report.splits, report.split, report.shared = {"train": 400, "val": 22}, "random, seed 0", 3
    report.classes = {"train": {"active": 390, "inert": 10}, "val": {"active": 22}}
    return report.finish()
